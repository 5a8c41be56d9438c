"""A plan from logs: read requests, replay every drafter along them, and sum up."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.errors import DataError, UsageError
from spsbench.foreign import cut
from spsbench.loop.types import Drafter
from spsbench.messages import ignore
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.ngram import RuleDrafter
from spsbench.planning.forecast.rounds import LEAST
from spsbench.planning.logs.formats import LeftOutError, Request
from spsbench.planning.logs.prices import Price
from spsbench.planning.logs.replay import (
    ANY_RULE,
    NO_PREFILL,
    RECORDED,
    Agreement,
    Method,
    Replay,
    looked_up,
)
from spsbench.planning.logs.requests import LogReader, Tokens
from spsbench.planning.logs.target_chances import Bounds, probabilities
from spsbench.plugins import make
from spsbench.settings.cell import WarpSettings
from spsbench.spec import Spec

USUAL = ("ngram", "ngram:match=first", "suffix", "suffix:shared=true", "copy")
REORDERED = 1_000_000  # most requests that are held to be put in the order of their times
DIFFERENT_SHARE = 0.5  # of answers whose ids and texts disagree, from which a tokenizer is wrong
LABEL = 60  # characters of a text beside its request's id
FEW = 20  # answers that must be compared before that is said


class LogContext:
    """What a drafter by rule may ask for at a log: texts that it keeps, and a tokenizer."""

    vocabularies = None

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self._memory: dict[Any, Any] = {}

    def memory(self, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, made once."""
        if make not in self._memory:
            self._memory[make] = make()
        return self._memory[make]

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            f"a drafter that asks for {name}: expected one that reads the text alone, such as "
            f"{', '.join(USUAL)}. Run sps plan with the target for others"
        )


@dataclass(kw_only=True)
class RuleDraft:
    """A drafter by rule, or the recorded lengths of another engine's drafts."""

    name: str
    drafter: RuleDrafter | HybridDrafter

    @classmethod
    def open(cls, spec: Spec, tokenizer: Any = None, vocab_size: int = 0) -> "RuleDraft":
        """Open a drafter without models.

        Raises:
            UsageError: one that a log cannot replay, with the reason.
        """
        if spec.name == "recycling":
            raise UsageError(
                "drafter recycling with a log: expected a drafter that reads texts alone. This one "
                "keeps the target's own candidates, which no log holds"
            )
        drafter: Drafter = make("drafters", spec, LogContext(tokenizer, vocab_size))
        by_rule = drafter.by_rule if isinstance(drafter, HybridDrafter) else True
        if drafter.tree or not by_rule or not isinstance(drafter, RuleDrafter | HybridDrafter):
            raise UsageError(
                f"drafter {spec} with a log: expected chains by rule ({', '.join(USUAL)}), or a "
                "draft model. Run sps plan with the target for others"
            )
        return cls(name=str(spec), drafter=drafter)

    def along(
        self, prompt: list[int], answer: list[int], ks: Sequence[int], first: int = 0
    ) -> list[Agreement]:
        """Return what the drafter says at every position from the first on, for each K."""
        self.drafter.begin(prompt, NO_PREFILL)
        return looked_up(self.drafter, prompt, answer, ks, first)


@dataclass(kw_only=True)
class LogPlan:
    """The replay of a log: its methods, and what was found.

    Args:
        drafts: drafters by rule.
        models: draft models (`draft_models.DraftModel`).
        rules: verifiers of sampled drafts.
        warp: of requests, where their lines name no temperature.
        tokens: turns requests into ids.
        texts: whether the answer may show texts of the log, which are private.
        watch: is called with the number of requests so far.
    """

    reader: LogReader
    ks: Sequence[int]
    drafts: Sequence[RuleDraft]
    models: Sequence[Any] = ()
    rules: Sequence[str] = ("sps", "block", "match")
    warp: WarpSettings = field(default_factory=WarpSettings)
    tokens: Tokens = field(default_factory=Tokens)
    prices: Sequence[Price] = ()
    texts: bool = False
    watch: Callable[[int], None] = ignore
    stop: Callable[[], bool] = lambda: False
    replay: Replay = field(init=False)
    greedy: int = field(default=0, init=False)  # requests at temperature 0
    without_prompt: int = field(default=0, init=False)
    of_servers: int = field(default=0, init=False)  # requests whose first token a prompt pass gave
    assumed: int = field(default=0, init=False)  # requests without a temperature of their own
    without_q: Counter[str] = field(default_factory=Counter, init=False)  # by reason
    unread: Counter[str] = field(default_factory=Counter, init=False)  # texts no model reads

    def __post_init__(self) -> None:
        self.replay = Replay(self.ks, self.prices)

    def run(self) -> "LogPlan":
        """Replay all requests.

        Raises:
            DataError: no usable request, or ids that are not the tokenizer's.
        """
        for number, request in enumerate(self._in_order(self.reader)):
            if self.stop():
                break
            try:
                prompt, answer = self.tokens.of(request)
            except LeftOutError as reason:
                self.reader.leave_out(reason, request.fields)
                continue
            self._check_tokenizer()
            self.without_prompt += not prompt
            self.of_servers += request.first > 0
            self.replay.count(answer)
            self._add(request, prompt, answer)
            self.watch(number + 1)
        if not self.replay.requests:
            reasons = "; ".join(f"{n:,} lines: {why}" for why, n in self.reader.left_out.items())
            raise DataError(
                f"no usable request ({', '.join(map(str, self.reader.paths))}; "
                f"{reasons or 'it is empty'}): expected answers with token ids, or texts and a "
                "tokenizer. See docs/logs.md for the formats"
            )
        return self

    def _in_order(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield requests by their times where a drafter keeps what earlier ones said."""
        source = iter(requests)
        first = next(source, None)
        if first is None:
            return
        shared = any("shared=true" in draft.name for draft in self.drafts)
        if not shared or first.created is None:
            yield first
            yield from source
            return
        held = [first]
        for request in source:
            held.append(request)
            if len(held) > REORDERED:
                break
        yield from sorted(held, key=lambda request: request.created or 0.0)
        yield from source

    def _add(self, request: Request, prompt: list[int], answer: list[int]) -> None:
        about = len(prompt) + request.first, self._label(request, answer), request.group
        along = [draft.along(prompt, answer, self.ks, request.first) for draft in self.drafts]
        for draft, agreements in zip(self.drafts, along, strict=True):
            self.replay.add_rule(Method(draft.name, ANY_RULE), agreements, *about)
        for name, kept in request.recorded.items():
            lengths = [min(n, len(answer) - at) for at, n in enumerate(kept[: len(answer)])]
            lengths += [0] * (len(answer) - len(lengths))
            lengths = lengths[request.first :]
            recorded = [Agreement(lengths, [k] * len(lengths)) for k in self.ks]
            self.replay.add_rule(Method(f"recorded:{name}", RECORDED), recorded, *about)
            if self.drafts:
                chosen = zip(along[0], recorded, self.ks, strict=True)
                both = [combined(first, then, k) for first, then, k in chosen]
                title = f"{self.drafts[0].name}, else recorded:{name}"
                self.replay.add_rule(Method(title, RECORDED), both, *about)
        warp = self._warp_of(request)
        for model in self.models:
            self._add_model(model, request, prompt, answer, warp)

    def _label(self, request: Request, answer: list[int]) -> str:
        """Return the id of a request, with the begin of its text only where that is asked for."""
        if not self.texts:
            return request.id
        text = request.text or request.answer
        if not isinstance(text, str):
            encoder = self.tokens.encoder
            text = "" if encoder is None else encoder.decode(answer)
        return f"{request.id}: {cut(text, LABEL)}"

    def _warp_of(self, request: Request) -> WarpSettings:
        if request.temperature is None:
            self.assumed += 1
            warp = self.warp
        else:
            warp = replace(self.warp, temperature=request.temperature)
        self.greedy += warp.temperature == 0
        return warp

    def _add_model(
        self, model: Any, request: Request, prompt: list[int], answer: list[int], warp: WarpSettings
    ) -> None:
        if why := model.fits(prompt, answer):
            self.unread[why] += 1
            return
        first = request.first
        along = model.along([*prompt, *answer[:first]], answer[first:], warp)
        about = len(prompt) + first, self._label(request, answer), request.group
        if warp.temperature == 0:
            agrees = along.agrees.astype(np.float64)
            for rule in self.rules:
                self.replay.add_sampled(Method(model.name, rule), agrees, None, *about)
            return
        q, why = self._target(request, answer, warp)
        if why:
            self.without_q[why] += 1
        for rule in self.rules:
            if rule == "match":
                self.replay.add_sampled(Method(model.name, rule), along.p, None, *about)
            elif q is not None and q.exact:
                self.replay.add_sampled(Method(model.name, rule), along.p, q.low[first:], *about)
            elif q is not None:
                for bound, values in (("at least", q.high), ("at most", q.low)):
                    method = Method(model.name, rule, bound)
                    self.replay.add_sampled(method, along.p, values[first:], *about)

    def _target(
        self, request: Request, answer: Sequence[int], warp: WarpSettings
    ) -> tuple[Any, str]:
        """Return the target's probabilities of the answer's tokens, or why they are unknown."""
        if request.probabilities is not None:
            chances = np.maximum(request.probabilities, LEAST)
            return Bounds(chances, chances), ""
        if request.logprobs is None:
            return None, "no usable log-probability of each token"
        if len(request.logprobs) != len(answer):
            return None, "another number of log-probabilities than of tokens"
        size = self.tokens.vocab_size
        bounds = probabilities(request.logprobs, warp, request.top_logprobs, size)
        if bounds is None:
            return None, "log-probabilities that say nothing of the law after temperature and cuts"
        return bounds, ""

    def _check_tokenizer(self) -> None:
        compared, different = self.tokens.compared, self.tokens.different
        if compared == FEW and different > DIFFERENT_SHARE * compared:
            raise DataError(
                f"{different} of the first {compared} answers: token ids and texts disagree: "
                "expected the tokenizer of the model that was served. Name another tokenizer"
            )


def combined(first: Agreement, then: Agreement, k: int, least: int = 3) -> Agreement:
    """Return a hybrid: the first draft where it has `least` tokens or fills K, else the other."""
    enough = [n >= min(least, k) for n in first.proposed]
    return Agreement(
        [a if yes else b for yes, a, b in zip(enough, first.agree, then.agree, strict=True)],
        [a if yes else b for yes, a, b in zip(enough, first.proposed, then.proposed, strict=True)],
    )


def prompts_by_id(path: Path | None) -> Mapping[str, str]:
    """Return the prompts of a file by id and by number, for logs that hold none.

    Raises:
        SpsError: a file that cannot be used.
    """
    if path is None:
        return {}
    from spsbench.tasks.jsonl import Jsonl

    prompts = {}
    for number, sample in enumerate(Jsonl(str(path)).samples(lambda prompt: True)):
        prompts[str(number)] = prompts[sample.id] = sample.prompt
    return prompts

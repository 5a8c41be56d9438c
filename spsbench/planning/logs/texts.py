"""A log as a source of texts: requests in ids, and what every draft says along them."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from spsbench.errors import DataError, UsageError
from spsbench.foreign import cut
from spsbench.loop.types import Drafter, Scores
from spsbench.messages import ignore
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.ngram import RuleDrafter, agreement
from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.predictions import ARS, Candidate, Prediction
from spsbench.planning.forecast.rounds import LEAST, UNLIMITED, Coins, Rounds, room_of, rounds
from spsbench.planning.logs.formats import LeftOutError, Request
from spsbench.planning.logs.requests import LogReader, Tokens
from spsbench.planning.logs.target_chances import probabilities
from spsbench.plugins import make
from spsbench.settings.cell import WarpSettings
from spsbench.spec import Spec

USUAL = ("ngram", "ngram:match=first", "suffix", "suffix:shared=true", "copy")
REORDERED = 1_000_000  # most requests that are held to be put in the order of their times
DIFFERENT_SHARE = 0.5  # of answers whose ids and texts disagree, from which a tokenizer is wrong
LABEL = 60  # characters of a text beside its request's id
FEW = 20  # answers that must be compared before that is said
NO_PREFILL = Scores(torch.empty(0, 0), {})  # no drafter by rule reads it
DEPTHS = (0, 32, 128, 512, 2048)  # first positions of the ranges by depth in the text
EXTREMES = 5  # requests that gain most, and least
MOST_GROUPS = 64
OTHER_GROUPS = "(others)"
ANY_RULE = "any exact"  # of drafts by rule, which every exact rule keeps alike
LOOK_UP = "look-up"  # the arm of drafters whose look-ups no costs hold: free


class LogContext:
    """The site of a drafter by rule at a log: texts that it keeps, and a tokenizer."""

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
    """A drafter by rule."""

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
    ) -> list[Coins]:
        """Return the chances of the drafter's proposals from the first position on, for each K."""
        self.drafter.begin(prompt, NO_PREFILL)
        return looked_up(self.drafter, prompt, answer, ks, first)


class Proposing(Protocol):
    """A drafter by rule: `methods.drafters.ngram.RuleDrafter`, or a hybrid of two."""

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return for each K a chain whose first K tokens are the draft."""


def looked_up(
    drafter: Proposing,
    prompt: Sequence[int],
    answer: Sequence[int],
    ks: Sequence[int],
    first: int = 0,
) -> list[Coins]:
    """Return the chances of what a drafter proposes at every position, for each K.

    Args:
        drafter: after `begin(prompt)`.
        first: position of the first round.
    """
    most = max(ks)
    hits: list[list[int]] = [[] for _ in ks]
    counts: list[list[int]] = [[] for _ in ks]
    tokens = [*prompt, *answer[:first]]
    for position in range(first, len(answer)):
        chains = drafter.proposals(tokens, ks)
        last, matching = None, 0
        for of_k, hits_of_k, counts_of_k in zip(chains, hits, counts, strict=True):
            if of_k is not last:
                last = of_k
                matching = agreement(of_k[:most], answer, position)
            hits_of_k.append(matching)
            counts_of_k.append(len(of_k))
        tokens.append(answer[position])
    return [Coins.by_rule(*of_k) for of_k in zip(hits, counts, ks, strict=True)]


class Extreme(NamedTuple):
    """A request and its tokens a round."""

    tau: float
    request: str
    tokens: int


@dataclass(kw_only=True)
class LogRow:
    """A candidate along the texts of a log: its prediction, and sums by place and by group."""

    prediction: Prediction
    within: float = 0.0  # drafted tokens whose places the texts have
    by_depth: Floats = field(default_factory=lambda: np.zeros((len(DEPTHS), 2)))
    by_group: dict[str, Floats] = field(default_factory=dict)  # emitted, rounds
    most: list[Extreme] = field(default_factory=list)  # heap, the least first
    least: list[Extreme] = field(default_factory=list)  # heap of negated tau
    requests: int = 0

    def add(self, expected: Rounds, context: int, name: str, group: str | None) -> None:
        """Add the rounds of a request."""
        self.prediction.add(expected, context, (self.requests, 0))
        self.requests += 1
        length = len(expected.coins.longest)
        self.within += float(
            expected.weights @ np.minimum(expected.drafted, length - expected.starts)
        )
        depths = np.searchsorted(DEPTHS, expected.starts, side="right") - 1
        np.add.at(self.by_depth, depths, np.stack([expected.weights, expected.emitted], 1))
        sums = np.array([length, expected.weights.sum()])
        if group is not None:
            known = group in self.by_group or len(self.by_group) < MOST_GROUPS
            group = group if known else OTHER_GROUPS
            self.by_group[group] = self.by_group.get(group, np.zeros(2)) + sums
        for heap, sign in ((self.most, 1.0), (self.least, -1.0)):
            entry = Extreme(sign * float(sums[0] / sums[1]), name, length)
            if len(heap) < EXTREMES:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)

    @property
    def by_slot(self) -> Floats:
        """Return [2, K] kept and tested tokens by place in the draft."""
        tally, k = self.prediction.tally, self.prediction.candidate.k or 0
        return np.asarray(tally.by_position.reshape(2, k))

    @property
    def kept_share(self) -> float | None:
        """Return the share of drafted tokens within the texts that were kept; None without one."""
        return self.prediction.sums.accepted / self.within if self.within else None

    @property
    def acceptance_length(self) -> float | None:
        """Return the tokens of a round with a draft, which vLLM reports; None without one."""
        drafts = self.prediction.tally.by_depth[0]
        return 1 + self.prediction.sums.accepted / float(drafts) if drafts else None

    @property
    def groups(self) -> Mapping[str, float]:
        """Return the tokens a round of each group."""
        return {group: float(n / rounds_) for group, (n, rounds_) in self.by_group.items()}


@dataclass(kw_only=True)
class LogPlan:
    """The candidates of a log along its texts, and what the texts lack.

    Args:
        costs: of rounds, those of a free look-up among them.
        batches: texts of a batch.
        operations: of a drafted token of a model over those of a row of the target.
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
    costs: Costs
    batches: Sequence[int] = (1,)
    operations: float = 0.0
    texts: bool = False
    watch: Callable[[int], None] = ignore
    stop: Callable[[], bool] = lambda: False
    rows: dict[Candidate, LogRow] = field(default_factory=dict, init=False)
    requests: int = field(default=0, init=False)
    written: int = field(default=0, init=False)  # tokens of all answers
    greedy: int = field(default=0, init=False)  # requests at temperature 0
    without_prompt: int = field(default=0, init=False)
    of_servers: int = field(default=0, init=False)  # requests whose first token a prompt pass gave
    assumed: int = field(default=0, init=False)  # requests without a temperature of their own
    without_q: Counter[str] = field(default_factory=Counter, init=False)  # by reason
    unread: Counter[str] = field(default_factory=Counter, init=False)  # texts no model reads

    def __post_init__(self) -> None:
        self._plain: dict[tuple[str, str], Prediction] = {}

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
            self.requests, self.written = self.requests + 1, self.written + len(answer)
            self._add(request, prompt, answer)
            self.watch(number + 1)
        if not self.requests:
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
        self._text = Text(request, len(prompt), len(answer), self._label(request, answer))
        for draft in self.drafts:
            by_k = draft.along(prompt, answer, self.ks, request.first)
            self._add_rows(draft.name, ANY_RULE, by_k)
        warp = self._warp_of(request)
        for model in self.models:
            self._add_model(model, request, prompt, answer, warp)

    def _add_rows(
        self, draft: str, rule: str, by_k: Sequence[Coins], reach: int | None = None
    ) -> None:
        """Add a draft along the text of a request, for each K."""
        text, method = self._text, (draft, rule)
        length, context = text.tokens - text.request.first, text.prompt + text.request.first
        if method not in self._plain:
            self._plain[method] = self._prediction(ARS, None, "")
        baseline = self._plain[method]
        baseline.add_plain(length, context, (baseline.texts, 0))
        budget = text.tokens if text.request.ended_by_limit else text.request.budget or UNLIMITED
        room = room_of(length, budget - text.request.first, reach)
        for k, coins in zip(self.ks, by_k, strict=True):
            candidate = Candidate(draft=draft, verifier=rule, k=k)
            if candidate not in self.rows:
                arm = draft if draft in self.costs.arms else LOOK_UP
                prediction = self._prediction(candidate, baseline, arm)
                self.rows[candidate] = LogRow(prediction=prediction)
            expected = rounds(coins, k, room)
            self.rows[candidate].add(expected, context, text.label, text.request.group)

    def _prediction(
        self, candidate: Candidate, baseline: Prediction | None, arm: str
    ) -> Prediction:
        return Prediction(
            candidate=candidate,
            costs=self.costs,
            baseline=baseline,
            arm=arm,
            batch=self.batches[0],
            new_prompts=math.inf,
            operations=0.0 if candidate.verifier == ANY_RULE else self.operations,
        )

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
        first, most = request.first, max(self.ks)
        chances = model.along([*prompt, *answer[:first]], answer[first:], warp)
        reach = None if model.lm.limit is None else model.lm.limit - len(prompt) - first

        def add(rule: Any, p: Floats, q: Floats | None) -> None:
            coins = Coins.sampled(p, q, rule, most)
            self._add_rows(model.name, rule, [coins] * len(self.ks), reach)

        q, why = self._target(request, answer, warp) if warp.temperature else (None, "")
        if why:
            self.without_q[why] += 1
        for rule in self.rules:
            if warp.temperature == 0:
                add(rule, chances.agrees.astype(np.float64), None)
            elif rule == "match":
                add(rule, chances.p, None)
            elif q is not None:
                add(rule, chances.p, q[first:])

    def _target(
        self, request: Request, answer: Sequence[int], warp: WarpSettings
    ) -> tuple[Floats | None, str]:
        """Return the target's probabilities of the answer's tokens, or why they are unknown."""
        if request.probabilities is not None:
            return np.maximum(request.probabilities, LEAST), ""
        if request.logprobs is None:
            return None, "no usable log-probability of each token"
        if len(request.logprobs) != len(answer):
            return None, "another number of log-probabilities than of tokens"
        chances = probabilities(request.logprobs, warp, request.top_logprobs)
        if chances is None:
            return None, "log-probabilities before the temperature and the cuts of the request"
        return chances, ""

    def _check_tokenizer(self) -> None:
        compared, different = self.tokens.compared, self.tokens.different
        if compared == FEW and different > DIFFERENT_SHARE * compared:
            raise DataError(
                f"{different} of the first {compared} answers: token ids and texts disagree: "
                "expected the tokenizer of the model that was served. Name another tokenizer"
            )


class Text(NamedTuple):
    """The text of a request."""

    request: Request
    prompt: int  # tokens
    tokens: int  # of the answer
    label: str


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

"""A log as a source of texts: requests in ids, and what every draft proposes along them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from spsbench.errors import DataError, UsageError
from spsbench.loop.types import Drafter, Scores
from spsbench.messages import ignore
from spsbench.methods.drafters.hybrid import HybridDrafter, looks_up
from spsbench.methods.drafters.ngram import RuleDrafter, look_ups
from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import Floats
from spsbench.metrics.text_checks import Repetition
from spsbench.planning.forecast.predictions import ARS, Prediction, RoundTally
from spsbench.planning.forecast.rounds import (
    LEAST,
    RULES,
    UNLIMITED,
    Acceptances,
    Rounds,
    room_of,
    rounds,
)
from spsbench.planning.logs.chats import LeftOutError
from spsbench.planning.logs.entries import Request
from spsbench.planning.logs.requests import RequestReader
from spsbench.planning.logs.tokens import LogTokenizer
from spsbench.plugins import make
from spsbench.settings.cell import WarpSettings, constant
from spsbench.settings.method import Drafting, Method
from spsbench.spec import Spec
from spsbench.untrusted import MAX_PATH, cut

USUAL = ("ngram", "ngram:match=first", "suffix", "suffix:shared=true", "copy")
NO_PREFILL = Scores(torch.empty(0, 0), {})  # no drafter that reads the text alone needs it
MOST_GROUPS = 64
OTHER_GROUPS = "(others)"
OF_ENGINE = Spec("")  # the drafter of a model that an engine runs: it has no name of ours
ANY_RULE = "any exact"  # accepts deterministic drafts as any other does
LOOK_UP = Drafting(Spec("look-up"))  # drafters whose look-ups no costs hold: free


class LogContext:
    """The context of a drafter at a log: it holds the texts that the drafter keeps, no model."""

    vocabularies = tokenizer = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.memory = cache(lambda make: make())  # a result, made once

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            f"a `drafter` that needs the target's {name}: expected one that reads the text alone "
            f"({', '.join(USUAL)}). Run sps plan with the target for others"
        )


def open_drafter(spec: Spec, vocab_size: int = 0) -> RuleDrafter | HybridDrafter:
    """Open a drafter that reads text alone, of `vocab_size` (0: unknown); UsageError: another."""
    drafter: Drafter = make("drafters", spec, LogContext(vocab_size))
    if not drafter.tree and looks_up(drafter):
        return drafter  # type: ignore[return-value]
    raise UsageError(
        f"`drafter` {spec} with a log: expected deterministic chains ({', '.join(USUAL)}), or a "
        "draft model. Run sps plan with the target for others"
    )


@dataclass(kw_only=True)
class LogRow:
    """A method along the texts of a log: its rounds, sums by group, then its prediction."""

    rounds: RoundTally
    baseline: RoundTally
    within: float = 0.0  # drafted tokens whose places the texts have
    by_group: dict[str, Floats] = field(default_factory=dict)  # emitted, rounds
    prediction: Prediction = field(init=False)  # after the last request

    def add(self, expected: Rounds, context: int, group: str | None) -> None:
        """Add the rounds of a request, and to its group, from the 65th on to `OTHER_GROUPS`.

        `context` is the number of tokens before the first round.
        """
        self.rounds.add(expected, context, (self.rounds.texts, 0))
        length = len(expected.acceptances.longest)
        self.within += float(
            expected.weights @ np.minimum(expected.drafted, length - expected.starts)
        )
        if group is not None:
            if group not in self.by_group and len(self.by_group) >= MOST_GROUPS:
                group = OTHER_GROUPS
            sums = np.array([length, expected.weights.sum()])
            self.by_group[group] = self.by_group.get(group, np.zeros(2)) + sums

    @property
    def kept_share(self) -> float | None:
        """Return the share of drafted tokens within the texts that were accepted."""
        return self.prediction.sums.accepted / self.within if self.within else None

    @property
    def acceptance_rate(self) -> float | None:
        """Return accepted over all drafted tokens, which vLLM reports; None without a draft."""
        sums = self.prediction.sums
        return sums.accepted / sums.drafted if sums.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Return the tokens of a round with a draft, which vLLM reports; None without one."""
        drafts = self.rounds.sums.by_depth[0]
        return 1 + self.prediction.sums.accepted / float(drafts) if drafts else None

    @property
    def groups(self) -> Mapping[str, float]:
        """Return the tokens a round of each group."""
        return {group: float(n / rounds_) for group, (n, rounds_) in self.by_group.items()}


class LogText(NamedTuple):
    """The text of a request in ids."""

    request: Request
    prompt: list[int]
    answer: list[int]


@dataclass(kw_only=True)
class LogPlan:
    """The candidates of a log along its texts, and what the texts lack.

    `drafters` maps a name to a deterministic drafter; `models` are draft models
    (`from_models.DraftModel`), verified by `rules`, and `processed` if they draft under logits
    processors. `warp` is the sampling of requests whose lines name no temperature. `tokens` turns
    requests into ids. `costs` are those of rounds, a free look-up's among them, and `batches` texts
    of a batch. `watch` is called with `reader` after each request.
    """

    reader: RequestReader
    ks: Sequence[int]
    drafters: Mapping[str, RuleDrafter | HybridDrafter]
    models: Sequence[Any] = ()
    rules: Sequence[str] = (*RULES,)
    warp: WarpSettings = field(default_factory=WarpSettings)
    processed: bool = False
    tokens: LogTokenizer = field(default_factory=LogTokenizer)
    costs: Costs
    batches: Sequence[int] = (1,)
    watch: Callable[[RequestReader], None] = ignore
    stop: Callable[[], bool] = lambda: False
    rows: dict[Method, LogRow] = field(default_factory=dict, init=False)
    requests: int = field(default=0, init=False)
    written: int = field(default=0, init=False)  # tokens of all answers
    cached: float = field(default=0.0, init=False)  # tokens before the middle of each answer
    without_prompt: int = field(default=0, init=False)
    of_servers: int = field(default=0, init=False)  # requests whose first token a prompt pass gave
    assumed: int = field(default=0, init=False)  # requests without a temperature of their own
    echoed: int = field(default=0, init=False)  # answers that began with their prompts
    repetition: Repetition = field(default_factory=Repetition, init=False)  # in the answers
    without_q: Counter[str] = field(default_factory=Counter, init=False)  # by reason
    unread: Counter[str] = field(default_factory=Counter, init=False)  # texts no model reads
    under: Counter[str] = field(default_factory=Counter, init=False)  # requests by their processors
    _plain: dict[tuple[str, str], RoundTally] = field(default_factory=dict, init=False)

    def run(self) -> "LogPlan":
        """Replay all requests until `stop`, fill `rows` and the counts, and return the plan.

        Requests without usable ids are left out by reason. `watch` is called with the reader after
        each other one. DataError: no usable request, or none that any method can be replayed on.
        """
        for request in self.reader:
            if self.stop():
                break
            try:
                text = LogText(request, *self.tokens.of(request))
            except LeftOutError as reason:
                self.reader.leave_out(reason, request.fields)
                continue
            self.without_prompt += not text.prompt
            self.repetition.add_text(text.answer)
            self.echoed += request.is_echo
            self.of_servers += request.first > 0
            self.requests, self.written = self.requests + 1, self.written + len(text.answer)
            self.cached += len(text.prompt) + len(text.answer) / 2
            self._add(text)
            self.watch(self.reader)
        if not self.requests:
            raise DataError(
                f"no usable request ({cut(', '.join(map(str, self.reader.paths)), MAX_PATH)}; "
                f"{self.reader.reasons()}): expected answers with token ids, or texts and a "
                "`tokenizer`. See docs/howto/logs.md for the formats"
            )
        if not self.rows:
            reasons = ", ".join([*self.unread, *self.without_q])
            raise DataError(
                f"nothing to replay ({reasons}): expected prompts that the draft model reads, and "
                "probabilities for `verifier`. Name a `drafter` that looks up, or `verifier` match"
            )
        context = self.cached / self.requests
        plain = {id(tally): tally.predict(new_prompts=math.inf) for tally in self._plain.values()}
        for method, row in self.rows.items():
            operations = 0.0
            if method.verifier != ANY_RULE:
                operations = self.costs.relative(row.rounds.priced_as, method.k or 1, context).value
            row.prediction = row.rounds.predict(
                plain[id(row.baseline)], new_prompts=math.inf, operations=operations
            )
        return self

    def _add(self, text: LogText) -> None:
        """Add a text's rounds by each draft (`shared=true` keeps the text); count its sampling."""
        baseline = self._baseline(("", ANY_RULE), text)
        for name, drafter in self.drafters.items():
            drafter.begin(text.prompt, NO_PREFILL)
            at = len(text.prompt) + text.request.first
            proposed, hits = look_ups(drafter.proposals, [*text.prompt, *text.answer], at, self.ks)
            by_k = map(Acceptances.deterministic, hits, proposed, self.ks)
            self._add_rows(Drafting.parse(name), ANY_RULE, list(by_k), text, baseline)
        temperature = text.request.temperature
        self.assumed += temperature is None
        warp = self.warp if temperature is None else replace(self.warp, temperature=temperature)
        if text.request.processed:
            self.under[", ".join(text.request.processed)] += 1
        for model in self.models:
            self._add_model(model, text, warp)

    def _baseline(self, method: tuple[str, str], text: LogText) -> RoundTally:
        """Add a text to plain sampling along the texts of a (draft, rule); return that tally."""
        if method not in self._plain:
            self._plain[method] = self._tally(ARS)
        baseline, first = self._plain[method], text.request.first
        baseline.add_plain(len(text.answer) - first, len(text.prompt) + first, (baseline.texts, 0))
        return baseline

    def _add_rows(
        self,
        drafting: Drafting,
        rule: str,
        by_k: Sequence[Acceptances],
        text: LogText,
        baseline: RoundTally,
        reach: int | None = None,
    ) -> None:
        """Add a draft along the text of a request, for each K, to the method's row, new or not.

        `by_k` has the chances for each of `ks`. `reach`: positions of the answer that the draft's
        own context holds; None: all.
        """
        request, tokens = text.request, len(text.answer)
        budget = tokens if request.ended_by_limit else request.budget or UNLIMITED
        room = room_of(tokens - request.first, budget - request.first, reach)
        for k, acceptances in zip(self.ks, by_k, strict=True):
            if (method := Method(drafting, rule, constant(k))) not in self.rows:
                tally = self._tally(method, self._priced_as(drafting))
                self.rows[method] = LogRow(rounds=tally, baseline=baseline)
            expected = rounds(acceptances, k, room)
            self.rows[method].add(expected, len(text.prompt) + request.first, request.group)

    def _priced_as(self, drafting: Drafting) -> Drafting:
        """Return what the costs have of a draft; a look-up that they lack is free."""
        if not drafting.model:
            return drafting if drafting in self.costs.arms else LOOK_UP
        model = priced_model(drafting.model)
        return next((a for a in self.costs.arms if a[:2] == model[:2]), model)

    def _tally(self, method: Method, drafter: Drafting | None = None) -> RoundTally:
        return RoundTally(method=method, costs=self.costs, drafter=drafter, batch=self.batches[0])

    def _add_model(self, model: Any, text: LogText, warp: WarpSettings) -> None:
        """Add a draft model's rounds along a text by each rule that q allows, or count why not.

        A text that it cannot read counts in `unread`, one without q in `without_q`. `match` needs
        no q, nor does temperature 0, where drafts are kept that are the model's likeliest tokens.
        """
        request, prompt, answer = text
        if why := model.fits(prompt, answer):
            self.unread[why] += 1
            return
        first, most = request.first, max(self.ks)
        p, agrees = model.along([*prompt, *answer[:first]], answer[first:], warp)
        reach = None if model.lm.limit is None else model.lm.limit - len(prompt) - first
        q, why, processed = None, "", self.processed or bool(request.processed)
        if warp.temperature:
            q, why = target_chances(request, answer, warp, processed)
        if why:
            self.without_q[why] += 1
        for rule in self.rules:
            if rule == "match" or warp.temperature == 0 or q is not None:
                chances = p if warp.temperature else agrees.astype(np.float64)
                acceptances = Acceptances.sampled(
                    chances, None if q is None else q[first:], rule, most
                )
                baseline = self._baseline((model.name, rule), text)
                drafting = Drafting(OF_ENGINE, model.name)
                self._add_rows(drafting, rule, [acceptances] * len(self.ks), text, baseline, reach)


def priced_model(name: str) -> Drafting:
    """Return a draft model as tables of costs have it."""
    return Drafting(Spec("model"), name)


def target_chances(
    request: Request, answer: Sequence[int], warp: WarpSettings, processed: bool = False
) -> tuple[Floats | None, str]:
    """Return the target's probabilities of an answer's tokens and ""; or None, and why.

    Those of a run hold under any sampling. Those of a log, which most servers take before sampling,
    count at the usual `warp` alone, without penalties, biases or bans (`processed`).
    """
    if request.probabilities is not None:
        return np.maximum(request.probabilities, LEAST), ""
    if request.logprobs is None:
        return None, "no usable log-probability of each token"
    if len(request.logprobs) != len(answer):
        return None, "another number of log-probabilities than of tokens"
    if warp != WarpSettings() or processed:
        return None, "log-probabilities before temperature, cuts and penalties of the request"
    return np.exp(np.maximum(np.array(request.logprobs, np.float64), math.log(LEAST))), ""


def prompts_by_id(path: Path | None) -> Mapping[str, str]:
    """Return the prompts of a file by id and by number, for logs that hold none; {} without a file.

    SpsError: a file that cannot be used.
    """
    if path is None:
        return {}
    from spsbench.tasks.jsonl import Jsonl

    prompts = {}
    for number, sample in enumerate(Jsonl(str(path)).samples(lambda sample: True)):
        prompts[str(number)] = prompts[sample.id] = sample.prompt
    return prompts

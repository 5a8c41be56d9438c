"""Cases of the enumeration: the settings of one generation, and tables in place of its models."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from spsbench.audit.exact.tables import Distribution, TableLM, ToyPair
from spsbench.audit.statistical.positions import distributions_of
from spsbench.audit.statistical.processed import process_logits
from spsbench.loop.constraint import Constraint
from spsbench.loop.decode import never
from spsbench.loop.types import LM, Draft, Drafter, Noise, Purpose, Schedule, Stop, Verifier
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.settings.cell import WarpSettings
from spsbench.settings.processors import Processors


@dataclass
class Facts:
    """The decisions so far in one round, on which the next cells depend."""

    q: Distribution
    p: Distribution
    text: tuple[int, ...]
    picked: dict[tuple[Purpose, int], int] = field(default_factory=dict)  # cell of each uniform
    middle: dict[tuple[Purpose, int], float] = field(default_factory=dict)  # midpoint of that cell
    draft: Draft | None = None  # as returned by the drafter under test
    redraft: Callable[[Noise], Draft] | None = None  # draft with other noise

    @property
    def draft_tokens(self) -> tuple[int, ...]:
        """Return the drafted tokens; none before the draft."""
        return () if self.draft is None else tuple(self.draft.tokens.tolist())

    def after(self, n: int) -> tuple[int, ...]:
        """Return the text and the first `n` tokens of the drafted chain."""
        return (*self.text, *self.draft_tokens[:n])

    def drawn(self, slot: int) -> list[float]:
        """Return p after the text and the chain's first `slot` tokens: the cell widths of DRAFT."""
        before = tuple(self.picked[Purpose.DRAFT, i] for i in range(slot))
        return list(self.p(self.text + before))


class RuleCells(Protocol):
    """The cells of an acceptance rule: the intervals between the thresholds of each uniform."""

    redrafts: bool = False  # whether the rule queries the drafter

    def order(self, purpose: Purpose, n: int) -> range:
        """Return the slots, in the order in which their cells become known."""
        return range(n)

    @abstractmethod
    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        """Return the widths of the cells of one uniform, from 0 up."""


Outcome = tuple[tuple[int, ...], str]  # the tokens of a generation, the reason of its end


def warp_probs(
    next_probs: Distribution, processors: Processors | None = None, start: int = 0, **settings: Any
) -> Distribution:
    """Return prefix -> probs under processors and the warp of `settings`, by the audit's own code.

    `next_probs` is the model's prefix -> probs, `start` the number of prompt tokens, which some
    processors do not count; `settings` are fields of `WarpSettings`. Temperature 0 is one-hot.
    """
    warp = WarpSettings(**settings)

    @cache
    def after(prefix: tuple[int, ...]) -> tuple[float, ...]:
        with np.errstate(divide="ignore"):
            raw = np.log(np.array([next_probs(prefix)], np.float64))
        logits = process_logits(raw, [prefix], start, processors)
        if warp.temperature == 0:
            return tuple(float(x == logits[0].argmax()) for x in range(len(logits[0])))
        return tuple(distributions_of(logits, warp).probs[0].tolist())

    return after


def output_distribution(
    q: Distribution,
    prompt: tuple[int, ...],
    tokens: int,
    *,
    eos: frozenset[int] = frozenset(),
    limit: int | None = None,
    stop: Callable[[Sequence[int]], bool] = lambda output: False,
) -> dict[Outcome, float]:
    """Return (output, reason of its end) -> probability, for all outputs of the target alone.

    `q` is the target's distribution under warp and processors. An output ends with a token of `eos`
    ("eos"), where `stop` says so of it in full ("stop"), with its budget of `tokens` ("length"), or
    where prompt and output have `limit` tokens ("context").
    """
    room = math.inf if limit is None else limit - len(prompt)
    budget = min(tokens, room)
    outcomes: dict[Outcome, float] = {}

    def walk(output: tuple[int, ...], weight: float) -> None:
        """Add all outputs that begin with `output`, which has probability `weight`."""
        finish = None
        if output and output[-1] in eos:
            finish = "eos"
        elif output and stop(output):
            finish = "stop"
        elif len(output) == budget:
            finish = "length" if tokens <= room else "context"
        if finish is not None:
            outcomes[output, finish] = weight
            return
        for token, probability in enumerate(q(prompt + output)):
            if probability > 0:
                walk((*output, token), weight * probability)

    walk((), 1.0)
    return outcomes


Address = Callable[[int, int, Purpose, int], Hashable]  # round, length, purpose, slot -> id


def fresh(index: int, length: int, purpose: Purpose, slot: int) -> Hashable:
    """Return (round, purpose, slot): every draw has an address of its own."""
    return index, purpose, slot


@dataclass
class Case:
    """One generation that is enumerated; `q` and `p` are as models have them, before processors."""

    verifier: Verifier
    rule: RuleCells
    q: Distribution
    p: Distribution
    vocab: int
    tokens: int = 3
    schedule: Schedule = field(default_factory=lambda: Constant(2))
    drafter: Callable[[LM], Drafter] = ModelDrafter
    warp: Mapping[str, Any] = field(default_factory=dict)
    processors: Processors | None = None
    package_warp: Callable[[Tensor], Tensor] | None = None  # in place of `Warp(**warp)`
    prompt: tuple[int, ...] = (0,)
    eos: frozenset[int] = frozenset()
    stop: Stop = never
    target_limit: int | None = None
    draft_limit: int | None = None
    address: Address = fresh
    one_round: bool = False  # walk the first round only; see `whole_texts`
    lm: Callable[["Case", list[int], bool], LM] | None = None
    constraint: Callable[[], Constraint] | None = None  # makes that of a text
    forced: bool = False  # the verifier refuses nothing, and sessions accept any commit

    def session(self, text: list[int], target: bool) -> LM:
        """Return a session over the target's or the draft's table; what is fed must follow `text`.

        `text` is prompt and output, which the caller extends. `lm` makes the session where it is
        set. Sessions of a forced case have no limit and check nothing.
        """
        if self.lm is not None:
            return self.lm(self, text, target)
        limit = self.target_limit if target else self.draft_limit
        next_probs = self.q if target else self.p
        if self.forced:
            return TableLM(next_probs, self.vocab, careless=True)
        return TableLM(next_probs, self.vocab, limit=limit, text=text, target=target)

    def warped(self, next_probs: Distribution) -> Distribution:
        """Return the distribution after any prefix under the case's processors and warp."""
        return warp_probs(next_probs, self.processors, len(self.prompt), **self.warp)

    def expected(self) -> dict[Outcome, float]:
        """Return (output, reason of its end) -> probability, under the target alone."""
        return output_distribution(
            self.warped(self.q),
            self.prompt,
            self.tokens,
            eos=self.eos,
            limit=self.target_limit,
            stop=self.stop,
        )


PROMPT = (0, 1, 0, 1, 0)  # prompt lookup finds a match
LOOKAHEAD = 2  # K of whole texts
MAX_K = 6  # the largest K of single rounds


class CaseSetting(NamedTuple):
    """Distributions, prompt and lengths of a case: whole texts, or a round of K tokens."""

    name: str
    pair: ToyPair
    lookahead: int = 0  # 0: whole texts
    prompt: tuple[int, ...] = PROMPT
    warp: Mapping[str, Any] = {}  # read only
    tokens: int = 2  # the length of whole texts; a single round may emit K + 1
    eos: frozenset[int] = frozenset()
    processors: Processors | None = None

    @property
    def greedy(self) -> bool:
        """Return whether the temperature is 0."""
        return self.warp.get("temperature") == 0


AT_ZERO = {"temperature": 0.0}
SURE = ("plain", "sure", "sure")
MIXED = Processors(
    biases=((1, 0.5),), repetition=1.5, frequency=0.4, presence=0.3, ngram=3, words=((2, 2),)
)

TEXTS = (  # lengths of three show the state between rounds, vocabularies of three the residual
    CaseSetting("two tokens", ToyPair(2, 3, ("plain",)), tokens=3),
    CaseSetting("three tokens", ToyPair(3, 2, ("plain",))),
    CaseSetting("two tokens: ties, zeros, disjoint supports", ToyPair(2, 4), tokens=3),
    CaseSetting("three tokens: ties, zeros, disjoint supports", ToyPair(3, 4)),
    CaseSetting("an EOS in the block", ToyPair(2, 3, ("plain",)), tokens=3, eos=frozenset({1})),
    CaseSetting(
        "temperature, top-k, top-p",
        ToyPair(3, 5, ("plain", "ties")),
        warp={"temperature": 1.5, "top_k": 2, "top_p": 0.7},
    ),
    CaseSetting("greedy", ToyPair(3, 4), tokens=3, warp=AT_ZERO),
    CaseSetting(
        "penalties, a bias and bans", ToyPair(3, 6, ("plain",)), tokens=3, processors=MIXED
    ),
)

LONGER = (  # longer texts of more tokens: ten times as many paths
    CaseSetting("three tokens, longer", ToyPair(3, 4), tokens=3),
    CaseSetting("three tokens, an EOS in the block", ToyPair(3, 1), tokens=3, eos=frozenset({1})),
)

ROUNDS = (  # most paths of a long draft differ in tokens alone: a sure draft model omits those
    *(CaseSetting("two tokens", ToyPair(2, 40 + k, ("plain",)), k) for k in (3, 4)),
    *(
        CaseSetting("a sure draft model", ToyPair(2, seed, SURE), k)
        for k, seed in ((5, 65), (MAX_K, 53))
    ),
    *(
        CaseSetting("ties, zeros, disjoint supports", ToyPair(2, 60 + k), k, (1, 0, 0, 1, 0, 0, 1))
        for k in range(3, MAX_K)
    ),
    CaseSetting(
        "three tokens, warped",
        ToyPair(3, 8, ("plain", "ties")),
        3,
        (2, 0, 1, 2, 0, 1),
        {"temperature": 1.5, "top_k": 2},
    ),
    CaseSetting("greedy", ToyPair(3, 9), MAX_K, warp=AT_ZERO),
)

DEEP_ROUNDS = tuple(  # all values of long drafts: hundreds of paths for each rule
    CaseSetting("two tokens", ToyPair(2, 40 + k, ("plain",)), k) for k in (5, MAX_K)
)

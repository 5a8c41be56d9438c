"""Schedules that choose K from past rounds: constant, heuristic, running acceptance, goodput."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from spsbench.loop.types import Round, Schedule
from spsbench.metrics.costs import PLAIN, Costs
from spsbench.metrics.costs_file import read_costs
from spsbench.metrics.rates import expected_tokens
from spsbench.plugins import COST, INSIDE, MOST
from spsbench.settings.method import Drafting
from spsbench.spec import K_MAX

S = TypeVar("S")
PRIOR = 4.0  # tokens
MOST_NODES = 1 << 16  # nodes of a tree
STEP = 64  # tokens of context that are priced alike
UP, DOWN = 2, 1


@dataclass(frozen=True)
class Constant(Schedule):
    """A schedule of K tokens a round; 0 is auto-regressive sampling; in a tree K is the depth.

    `most` bounds the nodes of a tree; None = as many as its drafter likes.
    """

    ranges: ClassVar = {"lookahead": (0, K_MAX), "most": (0, MOST_NODES)}

    lookahead: int = 4
    most: int | None = None

    def k(self, history: Sequence[Round]) -> int:
        return self.lookahead

    def nodes(self, history: Sequence[Round]) -> int | None:
        return self.most


class Fold(Generic[S]):
    """A left fold `step(... step(start, first round) ..., last round)` over a growing history."""

    def __init__(self, start: S, step: Callable[[S, Round], S]) -> None:
        self._start, self._step = start, step
        self._of: Sequence[Round] | None = None
        self._newest: Round | None = None  # the last round that was folded
        self._seen, self._state = 0, start

    def __call__(self, history: Sequence[Round]) -> S:
        """Return the state after all of `history`."""
        if not self._goes_on(history):
            self._of, self._seen, self._state = history, 0, self._start
        for turn in history[self._seen :]:
            self._state = self._step(self._state, turn)
        self._seen = len(history)
        self._newest = history[-1] if history else None
        return self._state

    def _goes_on(self, history: Sequence[Round]) -> bool:
        """Return whether `history` extends the list that was folded before."""
        if history is not self._of or len(history) < self._seen:
            return False
        return self._seen == 0 or history[self._seen - 1] is self._newest


def outcome(turn: Round) -> tuple[int, int]:
    """Return the numbers of kept and of tested draft tokens of a round.

    A verifier that does not test tokens one by one counts as stopping at the first rejection.
    """
    tested = turn.tested if turn.tested >= 0 else min(turn.accepted + 1, turn.drafted)
    return turn.accepted, tested


def costs_of_rows(row: float | str, most: int) -> list[float]:
    """Return the costs of 0, 1, ..., `most` further tokens that the target scores in a round.

    `row` is the cost of each; or of 1, 2, ... of them together, as in 0.03-0.06-0.2: a processor
    multiplies some rows while it reads the weights, and further ones take longer. Beyond the list
    each costs as much as its last one adds. ValueError: not such numbers, or one out of range.
    """
    try:
        costs = [0.0, *map(float, row.split("-") if isinstance(row, str) else [row])]
    except ValueError:
        raise ValueError(f"row is {row!r}: expected a number, or several as in 0.03-0.06") from None
    if not all(COST[0] <= cost <= COST[1] for cost in costs):
        raise ValueError(f"row is {row!r}: expected costs from {COST[0]} to {COST[1]:g}")
    further = max(0.0, costs[-1] - costs[-2])
    beyond = (costs[-1] + further * more for more in range(1, most + 2 - len(costs)))
    return [*costs, *beyond][: most + 1]


class AcceptanceSums(NamedTuple):
    """Running sums of kept and of tested tokens; later rounds weigh more."""

    kept: float = 0.0
    tested: float = 0.0

    def after(self, counts: tuple[int, int], decay: float) -> "AcceptanceSums":
        """Return the sums after a round of `counts` (kept, tested); earlier ones times `decay`."""
        return AcceptanceSums(decay * self.kept + counts[0], decay * self.tested + counts[1])

    def alpha(self, prior: float, weight: float) -> float:
        """Return the acceptance rate, above 0 and below 1 like the prior of `weight` tokens."""
        return (prior * weight + self.kept) / (weight + self.tested)


def best_k(alpha: float, costs: Sequence[float]) -> int:
    """Return the K of most expected tokens for its cost; the smaller of two that are equally good.

    `alpha` is the chance that a tested token is kept; `costs` are of rounds of K = 0, 1, 2, ...
    """
    tokens = expected_tokens(alpha, range(len(costs))).tolist()
    rates = [n / cost for n, cost in zip(tokens, costs, strict=True)]
    return rates.index(max(rates))


def running_sums(decay: float) -> Fold[AcceptanceSums]:
    """Return the sums over all rounds, each of which has `decay` of the weight of the next.

    Rounds without a draft count too, so that an acceptance returns to its prior while nothing is
    drafted, and drafting is tried again.
    """
    return Fold(AcceptanceSums(), lambda sums, turn: sums.after(outcome(turn), decay))


@dataclass
class Heuristic(Schedule):
    """A schedule that raises or lowers K after each round, between 1 and `most`; no host read."""

    ranges: ClassVar = {"most": MOST}

    start: int = 5
    most: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start is {self.start}: expected 1 to most, which is {self.most}")
        self._k: Fold[int] = Fold(self.start, self._after)

    def k(self, history: Sequence[Round]) -> int:
        return self._k(history)

    def _after(self, k: int, turn: Round) -> int:
        if turn.drafted == 0:
            return k  # a look-up that found nothing says nothing about K
        return min(k + UP, self.most) if turn.full else max(k - DOWN, 1)


@dataclass
class Ema(Schedule):
    """A schedule of the largest K with alpha ** K >= `least`, from 1 to `most`; no host read.

    alpha is an exponential moving average over the rounds (`running_sums`), so it does not depend
    on the K that it was seen at, unlike the mean number of kept tokens.
    """

    ranges: ClassVar = {**dict.fromkeys(("least", "decay", "alpha"), INSIDE), "most": MOST}

    least: float = 0.3
    decay: float = 0.9
    alpha: float = 0.7
    most: int = 20

    def __post_init__(self) -> None:
        self._sums = running_sums(self.decay)

    def k(self, history: Sequence[Round]) -> int:
        alpha = self._sums(history).alpha(self.alpha, PRIOR)
        return max(1, min(self.most, math.floor(math.log(self.least) / math.log(alpha))))


@dataclass
class Goodput(Schedule):
    """A schedule of the best K of 0 to `most` at the running acceptance; no host read.

    Costs are in passes of the target over one token: `draft` of a draft token, `row` of each
    further token that the target scores (or of 1, 2, ... of them: `costs_of_rows`), `fixed` of a
    round with a draft whatever its length; or those of a table that was measured (`costs=FILE`):
    of its `arm` (a drafter's name, needed where it has several), for a text of `context` tokens
    before the first round, in a `batch` of so many texts. While K is 0 nothing is learned, and the
    estimate drifts back to `alpha`: then it is tried again. SmartSpec (Liu et al. 2024, arXiv
    2406.14066) for one text: a schedule sees no neighbours, so that a text does not depend on them.
    """

    ranges: ClassVar = {
        **dict.fromkeys(("context", "draft", "fixed"), COST),
        **dict.fromkeys(("decay", "alpha"), INSIDE),
        "most": MOST,
    }

    costs: str = ""
    arm: str = ""
    context: int = 256
    batch: int = 1
    draft: float = 0.25
    row: float | str = 0.03
    fixed: float = 0.0
    decay: float = 0.9
    alpha: float = 0.7
    most: int = 20

    def __post_init__(self) -> None:
        self._rows = costs_of_rows(self.row, self.most)
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}: expected 1 or more")
        self._sums = running_sums(self.decay)
        self._written: Fold[int] = Fold(0, lambda tokens, turn: tokens + turn.emitted)
        self._table: Costs | None = None
        self._drafter = PLAIN
        if self.costs:
            self._table, self._drafter = lookup_costs(self.costs, self.arm, self.batch)
        elif self.batch > 1:
            raise ValueError(f"batch is {self.batch}: expected costs, a table that has batches")
        self._costs = cache(self._priced)

    def k(self, history: Sequence[Round]) -> int:
        alpha = self._sums(history).alpha(self.alpha, PRIOR)
        written = 0 if self._table is None else self._written(history)
        return best_k(alpha, self._costs(self.context + written // STEP * STEP))

    def _priced(self, context: int) -> list[float]:
        """Return the costs of rounds of K = 0 to `most` after `context` tokens.

        In plain passes, whatever the context is; with a table, in median seconds of its rounds.
        """
        table, ks = self._table, range(1, self.most + 1)
        if table is None:
            return [1.0, *(1.0 + self.fixed + k * self.draft + self._rows[k] for k in ks)]
        rounds = [(PLAIN, 0), *((self._drafter, k) for k in ks)]
        turns = (table.round(name, k, k, context, batch=self.batch).sum(0) for name, k in rounds)
        return [float(np.median(seconds)) for seconds in turns]


def lookup_costs(costs: str, arm: str, batch: int) -> tuple[Costs, Drafting]:
    """Return the table in the file `costs`, and its drafter of the name `arm` ("": the only one).

    ValueError: it has no such drafter, or no batch so large; SpsError: it cannot be read.
    """
    table = read_costs(Path(costs).expanduser())
    arms = {str(drafter): drafter for drafter in table.arms if drafter != PLAIN}
    if arm not in arms and (arm or len(arms) != 1):
        raise ValueError(f"arm={arm!r}: expected a drafter of {costs}: {', '.join(arms) or 'none'}")
    drafter, batches = arms[arm or next(iter(arms))], table.batches
    largest = 1 if batches is None or drafter not in batches.rest else batches.sizes[-1]
    if batch > largest:
        raise ValueError(
            f"batch is {batch}: expected up to {largest}, as in {costs} (measured by "
            "sps plan --batch)"
        )
    return table, drafter

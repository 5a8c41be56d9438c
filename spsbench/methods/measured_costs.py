"""Meter of real rounds; costs of a round for schedules, measured once for a machine."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from random import Random
from typing import TypeVar

import numpy as np

from spsbench.hardware.contention import read_clocks, was_disturbed
from spsbench.loop.batch import Batch
from spsbench.loop.decode import never
from spsbench.loop.decoder import Decoder
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Limits, Round, Schedule
from spsbench.methods.build import LoadedDecoderContext
from spsbench.methods.drafters.hybrid import THEN
from spsbench.methods.resolve import resolve, warp_of
from spsbench.methods.round_costs import DIGITS, RoundCosts, asks_for_costs, keep_costs, known_costs
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import AUTO, Cell, CellRequest, constant
from spsbench.settings.cell_from_options import HYBRID, parse_inner
from spsbench.spec import Spec

log = logging.getLogger(__name__)

DEPTHS = range(7)  # tokens drafted a round; the last is the most that `payoff` drafts by itself
PROMPT = 32  # random tokens
TURNS = 3
ROUNDS = 3  # rounds of each depth in a turn
SHORTEST = 64  # tokens before a text restarts
DRIFT = 10  # turns without a rejection, after which the text restarts
OWN = Spec("native")

Made = TypeVar("Made")


def greatest_batch(sizes: Sequence[int]) -> Batch | None:
    """Return a batch of the greatest of some sizes; None: one text alone needs none."""
    return Batch(sizes[-1], continuous=True) if sizes[-1] > 1 else None


def together(batch: Batch | None, calls: Sequence[Callable[[], Made]]) -> list[Made]:
    """Return what `calls` return, in order; several run as rows of `batch`, if there is one."""
    if batch is None or len(calls) == 1:
        return [call() for call in calls]
    return [row.result for row in sorted(batch.run(calls), key=lambda row: row.number)]


class GivenSchedule(Schedule):
    """A schedule whose K the measurement sets before each round."""

    requested = 0

    def k(self, history: Sequence[Round]) -> int:
        """Return the K that was set."""
        return self.requested


def turn_tokens(ks: Sequence[int], batches: int = 1) -> int:
    """Return the most tokens of a text that a turn of rounds makes, and the round of its prompt."""
    return batches * (sum(k + 1 for k in ks) + ks[0] + 1) + ks[0] + 1


class RoundMeter:
    """Real rounds of the decoding loop after one context; a turn times one round of each K.

    Each turn starts a few tokens later; texts that become too long restart. `cell` is the source of
    drafter, verifier and warp; its schedule is not used. `text` has more token ids than `context`,
    which are cached when a text begins. A turn makes `times` rounds of each of the rising `ks`,
    whose median is its value, in `sizes`, rising, of texts that make their rounds together.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: Loaded,
        text: Sequence[int],
        context: int,
        ks: Sequence[int],
        draw: Random,
        times: int = 1,
        sizes: Sequence[int] = (1,),
    ) -> None:
        self._warp, self._seed = warp_of(cell), cell.seed
        self._schedule, self._batch, self._draw = GivenSchedule(), greatest_batch(sizes), draw
        self._prompt, self._context = list(text[: context + 1]), context
        self.ks, self.sizes, self._times = tuple(ks), tuple(sizes), times
        self._turn = turn_tokens([*ks] * times, len(sizes))
        room = max(SHORTEST, DRIFT * self._turn)
        self._room = room if loaded.limit is None else min(room, loaded.limit - context - 1)
        contexts = [
            LoadedDecoderContext(cell, loaded, self._batch, schedule=self._schedule)
            for _ in range(sizes[-1])
        ]
        self._decoders: list[Decoder] = [make("decoders", OWN, parts) for parts in contexts]
        self._starts = 0
        self._rows, self._written = list[Iterator[Round]](), list[int]()  # rounds, tokens by text
        self._turns: list[Floats] = []

    def turn(self) -> None:
        """Time `times` rounds of each K, shuffled, in each size of batch; `of` returns the medians.

        Texts begin anew at the first turn, and where they have no room for another. Before the
        rounds of each size one of the least K is made and not counted, since the first is slower.
        """
        if not self._rows or max(self._written) + self._turn > self._room:
            self._begin()
        readings = np.empty((5, len(self.sizes), len(self.ks)))
        for at, size in enumerate(self.sizes):
            self._round(size, self.ks[0])  # the first round after other work is slower
            by_k: dict[int, list[Sequence[float]]] = {k: [] for k in self.ks}
            timed = [*self.ks] * self._times
            for k in self._draw.sample(timed, len(timed)):
                by_k[k].append(self._round(size, k))
            readings[:, at] = np.array([np.median(by_k[k], axis=0) for k in self.ks]).T
        self._turns.append(readings)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return [T, 5, B, K] of the turns with these numbers, by size of batch and K.

        The 5 are tokens drafted a text, seconds of draft, target and whole round, and tokens cached
        before the round.
        """
        return np.stack([self._turns[turn] for turn in turns])

    @property
    def context(self) -> int:
        """Return the mean number of tokens that were cached before the rounds."""
        return round(float(np.mean([readings[-1] for readings in self._turns])))

    def _begin(self) -> None:
        self._schedule.requested = self.ks[0]
        self._rows = [self._row(number) for number in range(self.sizes[-1])]
        self._written = [next(row).emitted for row in self._rows]  # prefills, untimed
        self._starts += 1

    def _row(self, number: int) -> Iterator[Round]:
        shift = number % len(self._prompt)
        prompt = [*self._prompt[shift:], *self._prompt[:shift]]
        noise = PhiloxStream(self._seed, "costs", str(self._starts), number)
        limits = Limits(self._room)
        decoder = self._decoders[number]
        return iter(decoder(prompt, limits=limits, warp=self._warp, noise=noise, stop=never))

    def _round(self, size: int, k: int) -> tuple[float, ...]:
        """Make a round of K = `k` in the first `size` texts together; count the tokens they emit.

        Returns tokens drafted (mean by text), seconds of draft and of target (of the first text)
        and of the whole round, and tokens cached before it (mean).
        """
        self._schedule.requested = k
        context = self._context + float(np.mean(self._written[:size]))
        began = time.perf_counter()
        rounds = together(self._batch, [partial(next, row) for row in self._rows[:size]])
        seconds = rounds[0].seconds if size == 1 else time.perf_counter() - began
        for number, done in enumerate(rounds):
            self._written[number] += done.emitted
        drafted = float(np.mean([done.drafted for done in rounds]))
        return drafted, rounds[0].draft_seconds, rounds[0].target_seconds, seconds, context


def learn_costs(cell: CellRequest, loaded: Loaded) -> None:
    """Measure and keep costs for a request with `costs=here` for which none are kept.

    Nothing is done for other requests, or in a context too short to measure in. Costs measured
    while other work ran are dropped: usual ones hold until the next call. A log line says which.
    """
    if not asks_for_costs(cell) or known_costs(cell) is not None:
        return
    if loaded.limit is not None and loaded.limit < PROMPT + turn_tokens([*DEPTHS] * ROUNDS):
        return
    before = read_clocks()
    costs = measured_costs(cell, loaded)
    if was_disturbed(before, read_clocks()):
        log.info("note: other work runs: the usual costs of a round are taken, none are measured")
        return
    keep_costs(cell, costs)
    log.info(
        f"note: measured once for this machine: a drafted token costs {costs.draft:g} passes, "
        f"{len(costs.row)} further rows {costs.row[-1]:g}, a round with a draft {costs.fixed:g}"
    )


def measured_costs(cell: CellRequest, loaded: Loaded) -> RoundCosts:
    """Return costs of rounds by the cell's drafter, of a hybrid its second, over a random text.

    Rounds of all depths (K of `DEPTHS`) alternate, with the usual verifier, and the fastest of each
    counts: what else a machine does only adds time. UsageError: `resolve` refuses the cell.
    """
    drafter = cell.drafter
    if drafter.name == HYBRID:
        drafter = parse_inner(str(dict(drafter.args).get("then", THEN)))
    drafting = cell.but(drafter=drafter, verifier=AUTO)
    text = Random(0).choices(range(loaded.vocab_size), k=PROMPT)
    readings = []
    for ks in (DEPTHS[:1], DEPTHS[1:]):
        depth = resolve(drafting.but(schedule=constant(ks[-1])))
        meter = RoundMeter(depth, loaded, text, PROMPT - 1, ks, Random(0), ROUNDS)
        for _ in range(TURNS):
            meter.turn()
        readings.append(meter.of(range(TURNS))[:, :, 0])
    _, draft, _, whole, _ = np.concatenate(readings, -1).swapaxes(0, 1)  # [T, depths] each
    return to_round_costs(
        [*zip(draft.min(0).tolist(), (whole - draft).min(0).tolist(), strict=True)]
    )


def to_round_costs(seconds: Sequence[tuple[float, float]]) -> RoundCosts:
    """Return costs in plain rounds from seconds of rounds of 0, 1, 2, ... drafted tokens.

    `seconds` has (drafting, all other work) of a round by drafted tokens, at least for 0, 1 and 2.
    A drafted token costs what drafting rises by, on average, after the first; n rows cost what the
    other seconds rise by, where the first row counts as the second. What more the first token takes
    is `fixed`. None is negative; all are rounded.
    """
    drafting, others = zip(*seconds, strict=True)
    plain, first, deepest = others[0], others[1], len(seconds) - 1
    token = max(0.0, (drafting[-1] - drafting[1]) / (deepest - 1))
    second = max(0.0, others[2] - first)
    rows = accumulate((second + max(0.0, time - first) for time in others[1:]), max)
    fixed = max(0.0, drafting[1] - token) + max(0.0, first - plain - second)
    draft, fixed, *row = (round(cost / plain, DIGITS) for cost in (token, fixed, *rows))
    return RoundCosts(draft, tuple(row), fixed)

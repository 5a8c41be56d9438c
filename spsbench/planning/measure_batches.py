"""Measure rounds and passes that several texts make together, by the texts of a batch."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import torch

from spsbench.benchmark.generation import check_cache
from spsbench.engines.session.cache import token_bytes
from spsbench.loop.batch import TARGET, Batch, BatchedLM
from spsbench.loop.decode import never
from spsbench.loop.decoder import Decoder
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import LM, Engine, Limits, Round, Schedule
from spsbench.methods.resolve import resolve, warp
from spsbench.metrics.costs import BatchCosts, Costs
from spsbench.metrics.costs_file import dumps
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import Surface
from spsbench.models.cache import Loaded
from spsbench.planning import measure
from spsbench.planning.forecast.batch_gains import FEW
from spsbench.planning.meters import ENDLESS, OWN, RoundMeterContext
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.labels import drafting
from spsbench.store.atomic import replace_file

TOKENS = (1, 2, 3, 5, 9, 17)  # of each text, in a common pass
REQUESTED = (1, 2, 4, 8, 16)
PLAIN_KS = (0,)
DRIFT = 512  # tokens after which the texts of rounds begin again

Made = TypeVar("Made")
MeasureSizes = Callable[[Sequence[int]], BatchCosts]


def measured_sizes(requested: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes to measure, from 1: those requested, or of many the powers of two.

    >>> measured_sizes(range(1, 25))
    (1, 2, 4, 8, 16, 24)
    """
    powers = [2**i for i in range(max(requested).bit_length())]
    return tuple(sorted({1, max(requested), *(requested if len(requested) <= FEW else powers)}))


def reached(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the values up to the first that is `most` or more."""
    return tuple(values[: next((i for i, v in enumerate(values) if v >= most), len(values)) + 1])


class BatchPassMeter:
    """Common passes of a target; a turn makes each size of batch and of pass once.

    Args:
        sessions: one for each text of the largest batch.
        text: token ids, at least as many as a session is fed.
        sizes, tokens: texts of a batch, and tokens of each; both rising.
        context: tokens cached before a pass.
    """

    def __init__(
        self,
        sessions: Sequence[LM],
        text: Sequence[int],
        sizes: Sequence[int],
        tokens: Sequence[int],
        context: int,
        draw: Random,
    ) -> None:
        self._sizes, self._tokens, self._context = tuple(sizes), tuple(tokens), context
        self._text, self._draw = torch.tensor(text[: context + tokens[-1]]), draw
        self._batch = Batch(sizes[-1], continuous=True)
        self._lms = [BatchedLM(session, self._batch, TARGET) for session in sessions]
        self._turns: list[Floats] = []
        for number, lm in enumerate(self._lms):
            lm.append(self._text[:context].roll(number), keep=0)

    def turn(self) -> None:
        """Time every pass once, including its rollback."""
        seconds = np.empty((len(self._sizes), len(self._tokens)))
        for place in self._draw.sample(places := list(np.ndindex(*seconds.shape)), len(places)):
            lms, n = self._lms[: self._sizes[place[0]]], self._tokens[place[1]]
            seconds[place], _ = timed(self._batch, [partial(self._pass, lm, n) for lm in lms])
        self._turns.append(seconds)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return [T, B, N] seconds of some of the turns."""
        return np.stack([self._turns[turn] for turn in turns])

    def _pass(self, lm: LM, n: int) -> None:
        lm.append(self._text[self._context : self._context + n], keep=n)
        lm.commit(self._context)


class GivenSchedule(Schedule):
    """A schedule whose K the measurement sets before each round."""

    requested = 0

    def k(self, history: Sequence[Round]) -> int:
        """Return the K that was set."""
        return self.requested


class BatchRoundMeter:
    """Common rounds of a drafter; a turn times one of each K in each size of batch.

    Args:
        cell: source of drafter, verifier and warp; the cell's schedule is not used.
        text: token ids, more of them than `context`.
        context: tokens cached when a text begins.
        sizes, ks: texts of a batch, and tokens requested of each; both rising.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: Loaded,
        text: Sequence[int],
        context: int,
        sizes: Sequence[int],
        ks: Sequence[int],
        draw: Random,
    ) -> None:
        self._cell, self._loaded, self._text, self._context = cell, loaded, list(text), context
        self.sizes, self.ks, self._draw = tuple(sizes), tuple(ks), draw
        self._schedule, self._batch = GivenSchedule(), Batch(sizes[-1], continuous=True)
        self._of_turn = _room(sizes, ks)  # most tokens
        self._room = max(self._of_turn, min(DRIFT, (loaded.limit or ENDLESS) - context - 1))
        self._rows: list[Iterator[Round]] = []
        self._written: list[int] = []
        self._turns: list[Floats] = []

    def turn(self) -> None:
        """Time every round once; texts that become too long begin again."""
        if not self._rows or max(self._written) + self._of_turn > self._room:
            self._begin()
        readings = np.empty((3, len(self.sizes), len(self.ks)))
        for at, size in enumerate(self.sizes):
            for i in self._draw.sample(range(len(self.ks)), len(self.ks)):
                self._schedule.requested = self.ks[i]
                context = self._context + np.mean(self._written[:size])
                calls = [partial(next, row) for row in self._rows[:size]]
                seconds, rounds = timed(self._batch, calls)
                for number, done in rounds.items():
                    self._written[number] += done.emitted
                drafted = np.mean([done.drafted for done in rounds.values()])
                readings[:, at, i] = seconds, drafted, context
        self._turns.append(readings)

    def of(self, turns: Sequence[int]) -> Floats:
        """Return [T, 3, B, K] of some turns: seconds, tokens drafted a text, mean context."""
        return np.stack([self._turns[turn] for turn in turns])

    def _begin(self) -> None:
        self._schedule.requested = self.ks[0]
        self._rows = [self._row(number) for number in range(self.sizes[-1])]
        self._written = [next(row).emitted for row in self._rows]  # prefills, untimed

    def _row(self, number: int) -> Iterator[Round]:
        stand = RoundMeterContext(self._cell, self._loaded, self._schedule, self._batch)
        decoder: Decoder = make("decoders", OWN, stand)
        prompt = self._text[: self._context + 1]
        shift = number % len(prompt)
        noise = PhiloxStream(self._cell.seed, "batch", str(len(self._turns)), number)
        return iter(
            decoder(
                [*prompt[shift:], *prompt[:shift]],
                limits=Limits(self._room),
                warp=warp(self._cell),
                noise=noise,
                stop=never,
            )
        )


def timed(batch: Batch, calls: Sequence[Callable[[], Made]]) -> tuple[float, dict[int, Made]]:
    """Return the seconds of calls that run as rows of a batch, and what each made."""
    began = time.perf_counter()
    rows = list(batch.run(calls))
    return time.perf_counter() - began, {row.number: row.result for row in rows}


def measure_batches(
    pairs: Sequence[measure.Pair],
    text: Sequence[int],
    sizes: Sequence[int],
    *,
    contexts: Sequence[int],
    most_k: int,
    seconds: float,
    watch: Callable[[measure.CostProgress], None],
) -> BatchCosts:
    """Measure passes and rounds in batches, of the drafters of some cells and of ArS.

    Args:
        pairs, text, contexts, seconds, watch: as for `measure.measure`.
        sizes: texts of a batch, from 1.
        most_k: largest K of a forecast.

    Raises:
        OutOfMemoryError: the largest batch does not fit.
        UsageError: contexts that are too short.
    """
    first, models = pairs[0]
    plain = resolve(first.auto_regressive), models
    tokens, ks = reached(TOKENS, most_k + 1), reached(REQUESTED, most_k)
    draw = Random(0)
    arms: dict[str, BatchRoundMeter] = {}
    fitting = measure.within(contexts, _room(sizes, ks), models.limit)
    text = measure.enough(text, fitting[-1] + max(tokens) + 1)
    middle = fitting[len(fitting) // 2]
    check_cache(first, models, [fitting[-1]] * sizes[-1], sizes[-1])
    for cell, loads in (plain, *pairs):
        arm_ks = PLAIN_KS if cell.k == 0 else ks
        round_meter = BatchRoundMeter(cell, loads, text, middle, sizes, arm_ks, draw)
        arms.setdefault(drafting(cell), round_meter)
    engine: Engine = make("engines", first.target.engine)
    passes = []
    for context in fitting:
        lms = [
            engine.session(models.target, vocab_size=models.vocab_size) for _ in range(sizes[-1])
        ]
        passes.append(BatchPassMeter(lms, text, sizes, tokens, context, draw))
    pace = measure.CostProgress(seconds)
    turns, _ = measure.quiet(measure.take_turns([*passes, *arms.values()], pace, watch, draw))
    pass_seconds = np.stack([meter.of(turns) for meter in passes], -1)  # [T, B, N, C]
    surfaces = tuple(Surface(tokens, tuple(fitting), pass_seconds[:, i]) for i in range(len(sizes)))
    return BatchCosts(
        sizes=tuple(sizes),
        passes=surfaces,
        rest={name: _beside_passes(meter, turns, surfaces, middle) for name, meter in arms.items()},
        cached=token_bytes(models.target),
    )


def _room(sizes: Sequence[int], ks: Sequence[int]) -> int:
    """Return the tokens beyond a context that a turn of rounds may make."""
    return len(sizes) * sum(k + 1 for k in ks) + 2 * (ks[-1] + 1)


def _beside_passes(
    meter: BatchRoundMeter, turns: Sequence[int], passes: Sequence[Surface], context: int
) -> tuple[Surface, ...]:
    """Return the seconds of rounds less those of the target's pass, of each size."""
    seconds, drafted, contexts = meter.of(turns).swapaxes(0, 1)  # [T, B, K]
    remainder = seconds.copy()
    for turn, size, k in np.ndindex(*seconds.shape):
        n, at = drafted[turn, size, k] + 1, contexts[turn, size, k]
        alone = passes[size].of_turns([turn]).at(n, at)
        remainder[turn, size, k] -= alone[0]
    return tuple(
        Surface(meter.ks, (context,), remainder[:, i, :, None]) for i in range(len(meter.sizes))
    )


def with_batches(
    costs: Costs,
    file: Path,
    drafts: Sequence[str],
    sizes: Sequence[int],
    measure_sizes: MeasureSizes,
) -> Costs:
    """Return costs with those of batches, measured and written to `file` where they lack some.

    Args:
        drafts: names of the drafts that must have costs.
        sizes: texts of a batch that are asked for.
        measure_sizes: measures some sizes.
    """
    batches = costs.batches
    has = (
        batches is not None and batches.sizes[-1] >= max(sizes) and {*drafts} <= batches.rest.keys()
    )
    if has:
        return costs
    updated = replace(costs, batches=measure_sizes(measured_sizes(sizes)))
    replace_file(file, dumps(updated).encode("ascii"))
    return updated

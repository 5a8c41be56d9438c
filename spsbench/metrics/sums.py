"""Sums of each generation: all that a summary needs, so that rounds need not stay in memory.

A table of 100,000 records holds about 20 numbers for each, instead of millions of rounds.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, compress, zip_longest
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import POSITIVE, Estimate, Floats, Jackknife, Scale
from spsbench.settings.records import MEASURES, Record, RoundRecord, field_columns

SLOTS = 16  # positions in a round with separate acceptance, under any schedule
SIBLINGS = 8  # children of a node with separate acceptance
COUNTS = attrgetter("tested", "accepted", "passes")


class Totals(NamedTuple):
    """The summands of one generation; those of time, from `timed` on, depend on its timing.

    Sums of time are zero where the timing is excluded; `quiet` is 0 for a timing under load.
    """

    tokens: float = 0.0  # emitted
    rounds: float = 0.0  # passes of the target; of an engine that does not tell them, none
    drafted: float = 0.0
    accepted: float = 0.0
    overlap: float = 0.0  # sum of sum_x min(p, q) over `overlap_tested` draft tokens
    overlap_tested: float = 0.0
    kept: float = 0.0  # accepted, in rounds that test slot by slot
    tested: float = 0.0
    depth: float = 0.0  # tokens of the longest drafted paths; in chains, all drafted tokens
    trees: float = 0.0  # rounds whose draft may branch
    tree_depth: float = 0.0  # the part of `depth` in trees
    round_tokens: float = 0.0  # emitted in `rounds`: without those of unreported passes
    texts: float = 1.0
    processor: float = 0.0  # processor seconds of the rounds that record them
    processor_tokens: float = 0.0
    timed: float = 0.0  # 1 where the timing counts
    quiet: float = 0.0  # 1 where nothing else kept the machine busy
    seconds: float = 0.0  # seconds of the rounds
    timed_tokens: float = 0.0
    timed_rounds: float = 0.0
    round_seconds: float = 0.0  # seconds of `timed_rounds`
    timed_depth: float = 0.0
    prefill: float = 0.0
    started: float = 0.0  # 1 with at least one round
    first: float = 0.0  # prefill and first round
    answer: float = 0.0  # prefill and all rounds
    split: float = 0.0  # seconds of rounds whose parts were measured
    draft: float = 0.0
    target: float = 0.0
    reached: float = 0.0  # 1 if the generation has as many tokens as the horizon
    horizon: float = 0.0  # decode seconds until the horizon


NAMES = (*Totals._fields, *(f"{side}.{m.field}" for m in MEASURES for side in ("sum", "of")))
"""The names of the sums; each measure has a sum and its tokens, rounds or texts."""
AT = {name: column for column, name in enumerate(NAMES)}
"""The column of each sum; then by position (kept, then tested) and by sibling."""
TIMES = slice(AT["timed"], len(Totals._fields))
"""The columns of times and their denominators."""
LOADED = "loaded"  # flag of a timing under load, which is shown and marked


def totals(
    rounds: Sequence[RoundRecord],
    prefill_seconds: float,
    horizon: int,
    *,
    timed: bool = True,
    quiet: bool = True,
) -> Totals:
    """Return the sums of one generation over its rounds, by the fields of `Totals`.

    Decode seconds are summed to the end of the round that reaches `horizon` tokens; 0 without. Not
    `timed`: sums of time and their denominators are 0. `quiet` is stored, 1 or 0, with the times.
    Counts that rounds lack (-1, None) are left out, and `drafted`, `depth` and processor time are 0
    where any round lacks them. Without rounds only the prefill counts.
    """
    if not rounds:
        of_time = {"timed": 1, "quiet": float(quiet), "prefill": prefill_seconds}
        return Totals(**of_time if timed else {})
    of = field_columns(rounds)
    drafted, tested, accepted, overlaps = of["drafted"], of["tested"], of["accepted"], of["overlap"]
    one_by_one = [(t, a) for t, a in zip(tested, accepted, strict=True) if t >= 0]
    tests, kept = (sum(column) for column in zip((0, 0), *one_by_one, strict=True))
    by_overlap = [(t, o) for t, o in zip(tested, overlaps, strict=True) if o is not None]
    overlap_tested, overlap = (sum(column) for column in zip((0, 0.0), *by_overlap, strict=True))

    branched = [(n, tree.depth) for n, tree in zip(drafted, of["tree"], strict=True) if tree]
    nodes, tree_depth = (sum(column) for column in zip((0, 0), *branched, strict=True))
    counted = min(drafted) >= 0
    passes, emitted = of["passes"], of["emitted"]
    counts = Totals(
        tokens=sum(emitted),
        rounds=sum(passes),
        drafted=sum(drafted) if counted else 0,
        accepted=sum(accepted),
        overlap=overlap,
        overlap_tested=overlap_tested,
        kept=kept,
        tested=tests,
        depth=sum(drafted) - nodes + tree_depth if counted else 0,
        trees=len(branched),
        tree_depth=tree_depth,
        round_tokens=sum(compress(emitted, passes)),
    )
    if not timed:
        return counts
    seconds, processor = of["seconds"], of["processor_seconds"]
    spent, draft, target = sum(seconds), sum(of["draft_seconds"]), sum(of["target_seconds"])
    progress = list(accumulate(emitted))
    reached = progress[-1] >= horizon
    measured = None not in processor
    return counts._replace(
        processor=sum(processor) if measured else 0.0,
        processor_tokens=counts.tokens if measured else 0.0,
        timed=1,
        quiet=float(quiet),
        seconds=spent,
        timed_tokens=counts.tokens,
        timed_rounds=counts.rounds,
        round_seconds=sum(compress(seconds, passes)),
        timed_depth=counts.depth,
        prefill=prefill_seconds,
        started=1,
        first=prefill_seconds + seconds[0],
        answer=prefill_seconds + spent,
        split=spent if draft or target else 0.0,
        draft=draft,
        target=target,
        reached=float(reached),
        horizon=sum(seconds[: bisect_left(progress, horizon) + 1]) if reached else 0.0,
    )


def measured_sums(record: Record, tokens: float) -> Iterator[float]:
    """Yield for each of `MEASURES` its sum as recorded and count (`tokens`, rounds, 1), or 0, 0."""
    for measure in MEASURES:
        if (measured := getattr(record, measure.field)) is None:
            yield from (0.0, 0.0)
        elif measure.listed:
            yield from (sum(measured), len(measured))
        else:
            yield from (measured, tokens if measure.per == "token" else 1.0)


def by_position(rounds: Sequence[RoundRecord], slots: int) -> list[int]:
    """Return [2 * slots] counts by position in a round: the draft tokens kept, then those tested.

    Positions beyond `slots` and rounds that were not tested slot by slot (-1) are left out. A round
    of several passes, whose counts are sums, counts only where it accepted nothing.
    """
    # triples of small numbers repeat: count in C, then loop in Python over the few distinct ones
    triples = Counter(map(COUNTS, rounds))
    kept, tested = [0] * slots, [0] * slots
    for (tests, accepted, passes), times in triples.items():
        if passes > 1:  # the sum of rounds that accepted nothing; of other sums `tested` is -1
            times, tests = times * max(tests, 0), 1
        for i in range(min(tests, slots)):
            tested[i] += times
            kept[i] += times * (accepted > i)
    return kept + tested


def by_sibling(rounds: Sequence[RoundRecord], most: int) -> list[int]:
    """Return [2 * most] counts by child of a node in trees: the times it was kept, then tested.

    Chains are left out, and so are children beyond `most`. A child is tested where no earlier child
    was kept: the ratio is Sequoia's acceptance vector (Chen et al. 2024, arXiv 2402.12374, section
    3.1).
    """
    kept, tested = [0] * most, [0] * most
    for r in rounds:
        if r.tree is None:
            continue
        for offered, chosen in zip_longest(r.tree.offered, r.tree.siblings):
            last = offered - 1 if chosen is None else chosen
            for i in range(min(last + 1, most)):
                tested[i] += 1
            if chosen is not None and chosen < most:
                kept[chosen] += 1
    return kept + tested


def by_depth(rounds: Sequence[RoundRecord], most: int) -> list[int]:
    """Count the rounds at least 1, 2 ... `most` tokens deep; a sum of passes is split evenly."""
    depths: Counter[int] = Counter()
    for r in rounds if most else ():  # a sum of passes has rounds of equal depth
        times = max(r.tested, 1) if r.passes > 1 else 1
        depths[r.depth // times] += times
    return [sum(n for depth, n in depths.items() if depth >= i) for i in range(1, most + 1)]


class Tally:
    """The streamed sums of a cell's generations.

    Args:
        slots: positions in a round with separate acceptance.
        horizon: number of tokens to time.
        k: the constant K of the cell, to count rounds by depth; 0 = no counts.
        batched_run: other cells make batches; a text alone had the machine to itself.
    """

    def __init__(self, slots: int, horizon: int, k: int = 0, *, batched_run: bool = False) -> None:
        self.slots, self.horizon, self.k = slots, horizon, k
        self._batched_run = batched_run
        self.failures = 0
        self.cut: set[int] = set()  # samples whose prompt was cut
        self.keys: dict[tuple[int, int], int] = {}  # (sample, repeat) -> row
        self._values = array("d")

    def add(self, record: Record, sample: int) -> None:
        """Append the row of sums of a record, new by sample and repeat; `sample` is its number.

        A failure adds to `failures` alone, and to `cut` if its prompt was cut. Flags exclude the
        times, but for "loaded", with which they are not `quiet`. Where other cells make batches,
        the machine seconds of a text alone are those of its prefill and rounds.
        """
        if record.prompt_cut:
            self.cut.add(sample)
        if record.error is not None:
            self.failures += 1
            return
        if self._batched_run and record.machine_seconds is None:
            spent = record.prefill_seconds + sum(r.seconds for r in record.rounds)
            record = replace(record, machine_seconds=spent, empty_seconds=0.0)
        self.keys[sample, record.repeat] = len(self.keys)
        timed, quiet = not {*record.flags} - {LOADED}, not record.flags
        sums = totals(record.rounds, record.prefill_seconds, self.horizon, timed=timed, quiet=quiet)
        self._values.extend(sums)
        self._values.extend(measured_sums(record, sums.tokens))
        self._values.extend(by_position(record.rounds, self.slots))
        self._values.extend(by_sibling(record.rounds, SIBLINGS))
        self._values.extend(by_depth(record.rounds, self.k))

    def add_expected(
        self,
        key: tuple[int, int],
        sums: Totals,
        by_position: Sequence[float],
        by_depth: Sequence[float],
    ) -> None:
        """Add the expected rounds of a text to the row of its key (sample, repeat), new or not.

        `by_position` and `by_depth` are counts as the functions of these names return them.
        """
        row = [*sums, *[0.0] * 2 * len(MEASURES), *by_position, *[0.0] * 2 * SIBLINGS, *by_depth]
        if key not in self.keys:
            self.keys[key] = len(self.keys)
            self._values.extend(row)
            return
        first = self.keys[key] * len(row)
        for column, value in enumerate(row, start=first):
            self._values[column] += value

    @property
    def rows(self) -> Floats:
        """Return [R, F] sums, one row a good generation, in the order of `keys`."""
        width = len(AT) + 2 * self.slots + 2 * SIBLINGS + self.k
        return np.frombuffer(self._values, dtype=np.float64).reshape(-1, width)

    @property
    def by_position(self) -> Floats:
        """Return draft tokens kept at each position of a round, then those tested."""
        return np.asarray(self.rows[:, len(AT) : len(AT) + 2 * self.slots].sum(0))

    @property
    def by_depth(self) -> Floats:
        """Return the rounds that drafted at least 1, 2, ... K tokens."""
        return np.asarray(self.rows[:, self.rows.shape[1] - self.k :].sum(0))

    def jackknife(self, rows: Floats) -> Jackknife:
        """Return the jackknife over samples of `rows`, or of `without_loaded(rows)`."""
        return Jackknife(rows, renumber([sample for sample, _ in self.keys]))


class Pairs(NamedTuple):
    """The generations that several tallies share, with the sums of each side by side."""

    jackknife: Jackknife
    widths: Sequence[int]
    loaded: bool  # some were timed under load, for lack of undisturbed ones
    sides: Sequence[Floats]  # [R, F] of each tally

    def estimate(
        self, figure: Callable[..., Floats], counted: str, scale: Scale = POSITIVE
    ) -> Estimate | None:
        """Return a figure of the shared generations with its interval; None: it is not finite.

        `figure` takes one [..., F] array of sums for each tally and returns [...]. Generations in
        which the last tally's sum named `counted` is 0 take no part in the interval.
        """
        ends = np.cumsum(self.widths)[:-1]
        estimate = self.jackknife.estimate(
            lambda sums: figure(*np.split(sums, ends, axis=-1)), int(ends[-1]) + AT[counted], scale
        )
        return estimate and estimate._replace(loaded=self.loaded)


def pair_generations(tallies: Sequence[Tally], counted: str) -> Pairs | None:
    """Pair the generations, by sample and repeat, in which `counted` is above 0 in every tally.

    Disturbed times are 0, unless no generation is shared then; a count pairs those, too. The pairs,
    with the sums, are in the order of the last tally. None: the tallies share no generation.
    """
    for loaded in (False, True):
        rows = [tally.rows if loaded else without_loaded(tally.rows) for tally in tallies]
        with_sum = [
            {key for key, row in tally.keys.items() if sums[row, AT[counted]] > 0}
            for tally, sums in zip(tallies, rows, strict=True)
        ]
        if keys := [key for key in tallies[-1].keys if all(key in side for side in with_sum)]:
            sides = [
                sums[[tally.keys[key] for key in keys]]
                for tally, sums in zip(tallies, rows, strict=True)
            ]
            samples = renumber([sample for sample, _ in keys])
            widths = [side.shape[1] for side in sides]
            return Pairs(Jackknife(np.hstack(sides), samples), widths, loaded, sides)
    return None


def without_loaded(rows: Floats) -> Floats:
    """Return a copy of [R, F] rows in which times under load, and their denominators, are 0."""
    kept = rows.copy()
    kept[:, TIMES] *= kept[:, AT["quiet"], None]
    return kept


Item = TypeVar("Item")
Kind = TypeVar("Kind")


def group_by(items: Iterable[Item], kind: Callable[[Item], Kind]) -> dict[Kind, list[Item]]:
    """Return kind -> its items, in their order; kinds are in the order of their first items."""
    groups: dict[Kind, list[Item]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return groups


def renumber(samples: Sequence[int]) -> NDArray[np.intp]:
    """Return [R] the samples of rows, renumbered 0 .. C-1 in ascending order."""
    return np.unique(np.array(samples, dtype=np.int64), return_inverse=True)[1]

"""What a run would be: its cells, how many generations, and about how long they would take."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spsbench.benchmark.jobs import Job, fitting, generations, make, uncut
from spsbench.hardware.contention import loaded, read_clocks
from spsbench.hardware.files import clock
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell, Method
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.labels import Names, method, setting
from spsbench.settings.task import Sample

TOKENS = 8  # of a probe
WARM_UP = 2
ENOUGH = 10.0  # seconds of probing, after which the other methods are taken as the known ones


class Cost(NamedTuple):
    """What a probe of one cell found, in seconds."""

    k: int
    before: float  # the first token: prefill and all that is no round
    per_token: float

    def of(self, tokens: int) -> float:
        """A whole generation."""
        return self.before + self.per_token * tokens


def estimate(
    experiment: Experiment, models: Callable[[Cell], Loaded], folder: Path
) -> Iterator[str]:
    """A line a cell, and the time of all, from a probe of each method at its ends of K.

    A probe is one short generation after a first call; what lies between two K is interpolated.
    """
    total, before, probes = 0.0, read_clocks(), 0
    until = time.monotonic() + ENOUGH
    known: dict[tuple[object, ...], list[Cost]] = {}
    names = Names(experiment.cells)
    for part in experiment.parts:
        sample = first_sample(part, models)
        counts = generations(part, len(uncut(part)))
        for cell in ends_of(part.cells):
            if not known or time.monotonic() < until:
                found = cost(cell, models(cell), Job(cell, sample, 0))
                known.setdefault(kind(cell), []).append(found)
                probes += 1
        for cell in part.cells:
            everything = [each for costs in known.values() for each in costs]
            own = between(known.get(kind(cell)) or everything, cell.k or 0)
            seconds = counts[cell.id] * own.of(cell.sampling.max_new_tokens)
            total += seconds
            parts = (part.spec, cell.models.target.id, method(cell), setting(cell))
            told = "  ".join(filter(None, (*map(str, parts), names.rest(cell))))
            yield (
                f"{cell.id}  {told}: {counts[cell.id]} generations of up "
                f"to {cell.sampling.max_new_tokens} tokens, about {clock(seconds)}"
            )
    yield (
        f"in all about {clock(total)} if no text ends early, into {folder}; from {probes} "
        f"generations of {TOKENS} tokens"
    )
    if loaded(before, read_clocks()):
        yield "other work kept this machine busy; alone it would take less"


def kind(cell: Cell) -> tuple[object, ...]:
    """What cells share whose times differ by K alone, as far as an estimate goes."""
    own: Method = cell.method
    return cell.models, own.drafter, own.verifier, own.decoder


def ends_of(cells: Sequence[Cell]) -> list[Cell]:
    """Of each kind the cells of the least and the greatest K."""
    kinds: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        kinds.setdefault(kind(cell), []).append(cell)
    found = []
    for members in kinds.values():
        by_k = sorted(members, key=lambda cell: cell.k or 0)
        found += [by_k[0]] if by_k[0].k == by_k[-1].k else [by_k[0], by_k[-1]]
    return found


def between(costs: Sequence[Cost], k: int) -> Cost:
    """The cost at `k`, on the line through those of the least and the greatest K."""
    low, high = min(costs), max(costs)
    share = (k - low.k) / (high.k - low.k) if high.k > low.k else 0.0
    share = min(max(share, 0.0), 1.0)
    before, per_token = (a + share * (b - a) for a, b in zip(low[1:], high[1:], strict=True))
    return Cost(k, before, per_token)


def first_sample(part: Part, models: Callable[[Cell], Loaded]) -> Sample:
    """One prompt of the part, cut to fit; the others are not looked at."""
    return next(islice(part.task.samples(fitting(part, models)), 1))


def cost(cell: Cell, models: Loaded, job: Job) -> Cost:
    """Time one short generation, after a shorter one for what first calls cost."""
    for tokens in (WARM_UP, TOKENS):
        few = min(tokens, cell.sampling.max_new_tokens)
        short = cell.but(max_new_tokens=few, ignore_eos=True, stop=())
        began = time.perf_counter()
        record = make(job._replace(cell=short), models, first=True)
        spent = time.perf_counter() - began
    decoding = sum(r.seconds for r in record.rounds)
    return Cost(cell.k or 0, spent - decoding, decoding / max(1, len(record.tokens)))

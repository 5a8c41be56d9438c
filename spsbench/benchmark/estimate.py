"""Estimate of a run before it starts, and progress during the run."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spsbench.benchmark.jobs import Job, fitting, generations, run_job, uncut
from spsbench.generation import time_limit
from spsbench.hardware.contention import read_clocks, was_disturbed
from spsbench.hardware.files import clock
from spsbench.metrics.rates import baseline
from spsbench.metrics.sums import LOADED, totals
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Experiment
from spsbench.settings.labels import Names, method, setting
from spsbench.settings.records import Record

TOKENS = 8  # tokens of a probe
WARM_UP = 2
ENOUGH = 10.0  # seconds of probing, after which other cells are taken to cost the same


class Cost(NamedTuple):
    """The measured seconds of a probe of one cell."""

    before: float  # until the first token: prefill and everything outside rounds
    per_token: float

    def of(self, tokens: int) -> float:
        """Return the seconds of a whole generation."""
        return self.before + self.per_token * tokens


def estimate_times(
    experiment: Experiment, models: Callable[[Cell], Loaded], folder: Path
) -> Iterator[str]:
    """Yield a line a cell, then one on the total time, which names `folder`; nothing is written.

    A cell is probed by a short generation after a warm-up, with what `models` loads for it; after
    `ENOUGH` seconds of probing, it costs what the probed cell costs that is most like it. A last
    line tells if other work ran meanwhile.
    """
    total, before = 0.0, read_clocks()
    is_over = time_limit(ENOUGH)
    probes: list[tuple[Cell, Cost]] = []
    names = Names(experiment.cells)
    for part in experiment.parts:
        sample = next(islice(part.task.samples(fitting(part, models)), 1))  # reads no other
        counts = generations(part, len(uncut(part)))
        for cell in part.cells:
            if not probes or not is_over():
                probes.append((cell, cost(cell, models(cell), Job(cell, sample, 0))))
            _, like = min(probes, key=lambda probe, cell=cell: unlikeness(probe[0], cell))  # type: ignore[misc]
            seconds = counts[cell.id] * like.of(cell.max_new_tokens)
            total += seconds
            parts = (part.spec, cell.target.id, method(cell), setting(cell))
            name = "  ".join(filter(None, (*map(str, parts), names.option_text(cell))))
            yield (
                f"{cell.id}  {name}: {counts[cell.id]} generations of up "
                f"to {cell.max_new_tokens} tokens, about {clock(seconds)}"
            )
    yield (
        f"in all about {clock(total)} if no text ends early, into {folder}; from {len(probes)} "
        f"generations of {TOKENS} tokens"
    )
    if was_disturbed(before, read_clocks()):
        yield "other work kept this machine busy; alone it would take less"


def unlikeness(one: Cell, other: Cell) -> tuple[bool, int]:
    """Return whether two cells differ in models or method, and the difference of their K."""
    models, others = ((c.target, c.draft, c.drafter, c.verifier, c.decoder) for c in (one, other))
    return models != others, abs((one.k or 0) - (other.k or 0))


def cost(cell: Cell, models: Loaded, job: Job) -> Cost:
    """Return a cell's cost by `TOKENS` tokens of `job`, at most its own, past ends, once warm."""
    for tokens in (WARM_UP, TOKENS):
        count = min(tokens, cell.max_new_tokens)
        short = cell.but(max_new_tokens=count, ignore_eos=True, stop=())
        began = time.perf_counter()
        record = run_job(job._replace(cell=short), models)
        spent = time.perf_counter() - began
    decoding = sum(r.seconds for r in record.rounds)
    return Cost(spent - decoding, decoding / max(1, sum(r.emitted for r in record.rounds)))


class RunProgress:
    """Progress of a run: finished records, tokens a second, and current tau and speed-up."""

    def __init__(self, total: int, cells: Sequence[Cell] = ()) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._began = time.monotonic()
        self._tokens = self._drafted_rounds = self._drafted_tokens = 0.0
        bases = {cell.id: baseline(cell, cells) for cell in cells if cell.k != 0}
        self._base = {name: base.id for name, base in bases.items() if base is not None}
        self._times: dict[str, dict[tuple[str, int], tuple[float, float]]]  # seconds, tokens
        self._times = {cell.id: {} for cell in cells}

    def add(self, cell: Cell, record: Record) -> None:
        """Count one record, its tokens and rounds; its time if it has no flag but `loaded`."""
        self.done += 1
        self.failed += record.error is not None
        sums = totals(record.rounds, record.prefill_seconds, horizon=1)
        self._tokens += sums.tokens
        if cell.k != 0:
            self._drafted_rounds += sums.rounds
            self._drafted_tokens += sums.round_tokens
        if not {*record.flags} - {LOADED} and record.rounds and cell.id in self._times:
            self._times[cell.id][record.sample, record.repeat] = sums.seconds, sums.tokens

    def _gained(self) -> str:
        """Return the speed-up by the rule of the final table: over generations of both methods.

        For several cells, the least and the greatest value, in words that do not suggest an
        interval. Empty if no generation has been made by both.
        """
        speedups = []
        for name, base in self._base.items():
            times, others = self._times[name], self._times[base]
            if shared := times.keys() & others.keys():
                new, old = (
                    map(sum, zip(*(t[key] for key in shared), strict=True)) for t in (times, others)
                )
                (seconds, tokens), (plain_seconds, plain_tokens) = new, old
                speedups.append(plain_seconds / plain_tokens / (max(seconds, 1e-12) / tokens))
        if len(speedups) < 2:
            return "".join(f"speed-up {speedup:.2f}x so far" for speedup in speedups)
        least, greatest = f"{min(speedups):.2f}x", f"{max(speedups):.2f}x"
        return f"speed-up so far {least} (least of {len(speedups)} cells) to {greatest} (greatest)"

    def __str__(self) -> str:
        """Format as `312/800, 410 tokens/s, tau 3.10, speed-up 1.90x so far, 0:04:10 to go`."""
        passed = max(time.monotonic() - self._began, 1e-9)
        parts = [f"{self.done}/{self.total}", f"{rate(self._tokens / passed)} tokens/s"]
        if self._drafted_rounds:
            parts.append(f"tau {self._drafted_tokens / self._drafted_rounds:.2f}")
        parts += filter(None, [self._gained()])
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.done:
            parts.append(f"{clock(passed / self.done * (self.total - self.done))} to go")
        return ", ".join(parts)


def rate(value: float) -> str:
    """Format to two digits, from 10 on without decimals: `410`, `4.1`, `0.41`, `0.041`."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"

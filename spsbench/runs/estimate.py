"""What a run would be: its cells, how many generations, and about how long they would take."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spsbench.machine.load import loaded, read_clocks
from spsbench.machine.sizes import clock
from spsbench.models.shelf import Loaded
from spsbench.runs.jobs import Job, jobs, make, samples_of
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Experiment
from spsbench.settings.names import method, setting

TOKENS = 32  # of each probe


def estimate(
    experiment: Experiment, models: Callable[[Cell], Loaded], folder: Path
) -> Iterator[str]:
    """A line a cell, and the time of all; two short generations are made of each."""
    total, before = 0.0, read_clocks()
    for part in experiment.parts:
        samples = samples_of(part, models)
        counts: dict[str, int] = {}
        for job in jobs(part, samples, experiment.seed):
            counts[job.cell.id] = counts.get(job.cell.id, 0) + 1
        for cell in part.cells:
            seconds = counts[cell.id] * cost(cell, models(cell), Job(cell, samples[0], 0))
            total += seconds
            names = f"{part.spec}  {cell.models.target.id}  {method(cell)}  {setting(cell)}"
            yield (
                f"{cell.id}  {names}  {cell.method.decoder}: {counts[cell.id]} generations of up "
                f"to {cell.sampling.max_new_tokens} tokens, at most about {clock(seconds)}"
            )
    yield f"in all at most about {clock(total)}, into {folder}"
    if loaded(before, read_clocks()):
        yield "other work kept this machine busy; alone it would take less"


def cost(cell: Cell, models: Loaded, job: Job) -> float:
    """Seconds that a whole generation may take: prefill as measured, rounds to the budget."""
    few = min(TOKENS, cell.sampling.max_new_tokens)
    short = cell.but(max_new_tokens=few, ignore_eos=True, stop=())
    make(job._replace(cell=short), models, first=True)
    began = time.perf_counter()
    record = make(job._replace(cell=short), models, first=True)
    spent = time.perf_counter() - began
    decoding = sum(r.seconds for r in record.rounds)
    made = max(1, len(record.tokens))
    return spent - decoding + decoding * cell.sampling.max_new_tokens / made

"""`sps bench --dry-run`: the cells, how many generations, and about how long they would take."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spsbench.bench import Job, jobs, make, samples_of
from spsbench.cli.notes import note, say
from spsbench.cli.progress import clock
from spsbench.experiment import Experiment
from spsbench.load_guard import loaded, read_clocks
from spsbench.loading import Loaded
from spsbench.reports.columns import method, setting
from spsbench.results import Cell

TOKENS = 32  # of each probe


def probe(experiment: Experiment, models: Callable[[Cell], Loaded], folder: Path) -> None:
    """Print one line a cell, and the time of all; two short generations are made of each."""
    total, before = 0.0, read_clocks()
    for part in experiment.parts:
        samples = samples_of(part, models)
        counts: dict[str, int] = {}
        for job in jobs(part, samples, experiment.seed):
            counts[job.cell.id] = counts.get(job.cell.id, 0) + 1
        for cell in part.cells:
            seconds = counts[cell.id] * cost(cell, models(cell), Job(cell, samples[0], 0))
            total += seconds
            names = f"{part.spec}  {cell.target.id}  {method(cell)}  {setting(cell)}"
            print(
                f"{cell.id}  {names}  {cell.decoder}: {counts[cell.id]} generations of up to "
                f"{cell.max_new_tokens} tokens, at most about {clock(seconds)}"
            )
    print(f"in all at most about {clock(total)}, into {folder}")
    say("nothing was written; texts that end early make it shorter")
    if loaded(before, read_clocks()):
        note("other work kept this machine busy; alone it would take less")


def cost(cell: Cell, models: Loaded, job: Job) -> float:
    """Seconds that a whole generation may take: prefill as measured, rounds to the budget."""
    few = min(TOKENS, cell.max_new_tokens)
    short = replace(cell, max_new_tokens=few, ignore_eos=True, stop=())
    make(job._replace(cell=short), models, first=True)
    began = time.perf_counter()
    record = make(job._replace(cell=short), models, first=True)
    spent = time.perf_counter() - began
    decoding = sum(r.seconds for r in record.rounds)
    made = max(1, len(record.tokens))
    return spent - decoding + decoding * cell.max_new_tokens / made

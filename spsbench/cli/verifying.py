"""`sps verify run` and `pair` once torch may be imported."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from spsbench.audit.pair import TASKS, audit_pair, greedy_pair, prompts_of
from spsbench.audit.replay import replay
from spsbench.audit.workbench import workers_for
from spsbench.cli.models import Models
from spsbench.cli.notes import say
from spsbench.cli.verdicts import Audited, publish
from spsbench.errors import DataError, UsageError
from spsbench.loading import Loaded
from spsbench.results import Cell, Spec


def verify_run(
    run: Path,
    *,
    level: float,
    bias: float | None,
    max_tokens: int | None,
    offline: bool,
    threads: int | None,
    form: str,
    plot: Path | None,
) -> int:
    """Audit the records of a run; the exit code."""
    if threads is not None:
        torch.set_num_threads(threads)
    audited = []
    for done in replay(run, Models(offline), level=level, asked=bias, most=max_tokens, say=say):
        known = {"cell": asdict(done.cell), "ars": done.control, "failures": done.failures}
        audited.append(Audited(named(done.cell), known, done.result))
    return publish(audited, form, plot)


def named(cell: Cell) -> str:
    """A cell in a few words."""
    task = f"{cell.task}, " if cell.task else ""
    theirs = "" if cell.decoder.name == "native" else f", {cell.decoder}"
    return f"{task}{cell.method}, temperature {cell.temperature:g}{theirs}"


def verify_pair(
    cell: Cell,
    loaded: Loaded,
    *,
    tasks: Sequence[Spec],
    prompts: int,
    bias: float,
    level: float,
    max_tokens: int,
    workers: int | None,
    offline: bool,
    form: str,
    plot: Path | None,
) -> int:
    """Audit texts that are generated for it; the exit code."""
    found = prompts_of(cell, loaded, tasks or TASKS, prompts)
    if not found:
        raise DataError("no prompt fits the context (--task): expected one. Name another task")
    known = {"cell": asdict(cell), "prompts": [p.name for p in found], "bias": bias}
    if cell.temperature == 0:
        if plot is not None:
            raise UsageError("--plot at temperature 0: expected it above 0. Leave it out")
        greedy = greedy_pair(cell, loaded, found, say)
        return publish([Audited(named(cell), known, greedy)], form, None)
    count = workers or workers_for(cell, loaded)
    say(f"auditing {named(cell)}: {len(found)} prompts, {count} processes")
    finding = audit_pair(
        cell,
        loaded,
        found,
        bias=bias,
        level=level,
        most=max_tokens,
        workers=count,
        offline=offline,
        say=say,
    )
    return publish([Audited(named(cell), known, finding)], form, plot)

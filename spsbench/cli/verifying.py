"""`sps verify run` and `pair` once torch may be imported."""

from dataclasses import asdict
from pathlib import Path

import torch

from spsbench.audit.replay import replay
from spsbench.cli.models import Models
from spsbench.cli.notes import say
from spsbench.cli.verdicts import Audited, publish
from spsbench.results import Cell


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

"""Chinchilla's figures, to stand beside measured ones (Chen et al. 2023, arXiv 2302.01318).

Chinchilla 70B with a 4B draft of 8 layers on 16 TPU v4, batch size 1, K = 4: another pair on
another machine. They show the shape to expect, never a target to reach.
"""

from typing import NamedTuple

from spsbench.metrics.summary import Summary
from spsbench.settings.labels import method, warp

TARGET, DRAFT = "Chinchilla 70B", "Chinchilla 4B"
SOURCE = (
    "Rows marked Chinchilla are the paper's "
    "(Chen et al. 2023, Table 1: 70B and 4B on 16 TPU v4, not this machine)"
)


class PaperRow(NamedTuple):
    """A row of Table 1."""

    task: str
    setting: str  # this and the method in the words of `columns`
    method: str
    metric: str
    result: float  # on the scale 0 .. 1
    mean_token_time_ms: float
    speedup: float
    sequences: int


XSUM, HUMANEVAL = "top-p 0.8", "top-p 0.95, T 0.8"

TABLE_1 = (
    PaperRow("xsum", XSUM, "ArS", "rouge2", 0.112, 14.1, 1.0, 11305),
    PaperRow("xsum", XSUM, "SpS K=4", "rouge2", 0.114, 7.52, 1.92, 11305),
    PaperRow("xsum", "greedy", "ArS", "rouge2", 0.157, 14.1, 1.0, 11305),
    PaperRow("xsum", "greedy", "SpS K=4", "rouge2", 0.156, 7.00, 2.01, 11305),
    PaperRow("humaneval", HUMANEVAL, "ArS", "pass@1", 0.451, 14.1, 1.0, 16400),
    PaperRow("humaneval", HUMANEVAL, "SpS K=4", "pass@1", 0.470, 5.73, 2.46, 16400),
)
"""XSum: 1-shot, 11,305 sequences of at most 128 tokens. HumanEval: 100 samples for each problem,
16,400 of at most 512 tokens; the paper gives no temperature for XSum's nucleus sampling."""


def beside(summary: Summary) -> PaperRow | None:
    """The paper's row for a measured one; None where Table 1 has none."""
    cell = summary.cell
    if summary.group is not None or not cell.method.own_loop:
        return None
    asked = cell.work.task.name if cell.work.task else "", warp(cell), method(cell)
    return next((row for row in TABLE_1 if (row.task, row.setting, row.method) == asked), None)

"""Generations for a person: one alone, or ArS and SpS side by side."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spsbench.benchmark.generation import Generation, interleave
from spsbench.loop.text import Piece
from spsbench.loop.types import Drawn
from spsbench.methods.resolve import plan_of, resolve
from spsbench.metrics.rates import Metrics, metrics
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record

WARM_UP_TOKENS = 8
WARM_UP_PROMPT = 32  # newest tokens of the prompt; its length does not matter for first calls

Show = Callable[[list[Piece]], None]


class Arm(NamedTuple):
    """A finished generation, its cell and its figures."""

    cell: Cell
    record: Record
    figures: Metrics
    by_rule: bool  # the drafts were looked up, not sampled


def run_both(
    cell: Cell, loaded: Loaded, prompt: Sequence[int], show: Show
) -> tuple[Generation, Generation]:
    """ArS and the cell itself, round by round in turn; only the cell's own text is shown."""
    cells = resolve(cell.auto_regressive), cell
    warm_up(cells, loaded, prompt)
    ars, sps = (Generation(each, loaded, prompt) for each in cells)
    for index, update in interleave(ars, sps):
        if index == 1:
            show(update.pieces)
    return ars, sps


def warm_up(cells: Sequence[Cell], loaded: Loaded, prompt: Sequence[int]) -> None:
    """A few tokens of every arm, so that the cost of first calls enters no figure."""
    for cell in cells:
        short = cell.but(max_new_tokens=min(WARM_UP_TOKENS, cell.sampling.max_new_tokens))
        for _ in Generation(short, loaded, prompt[-WARM_UP_PROMPT:]):
            pass


def arm(generation: Generation) -> Arm:
    """What has come of `generation`."""
    cell, record = generation.cell, generation.record
    by_rule = plan_of(cell.method.drafter).drawn is Drawn.POINT
    return Arm(cell, record, metrics(record.rounds, record.prefill_seconds), by_rule)

"""Generations of the command line: one alone, or two side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from spsbench.build import resolve
from spsbench.cli.session import Session
from spsbench.config import auto_regressive
from spsbench.generation import Generation, interleave
from spsbench.metrics import Metrics, metrics
from spsbench.parts import plug_in
from spsbench.results import Cell, Record
from spsbench.text import Piece
from spsbench.types import Drawn

WARM_UP_TOKENS = 8
WARM_UP_PROMPT = 32  # newest tokens of the prompt; its length does not matter for first calls

Show = Callable[[list[Piece]], None]


class Arm(NamedTuple):
    """A finished generation, its cell and its figures."""

    cell: Cell
    record: Record
    figures: Metrics
    by_rule: bool  # the drafts were looked up, not sampled


def run(session: Session, prompt: Sequence[int], show: Show) -> Arm:
    """Generate, and show the text as it comes."""
    generation = Generation(session.cell, session.loaded, prompt)
    for update in generation:
        show(update.pieces)
    return arm(session.cell, generation)


def run_both(session: Session, prompt: Sequence[int], show: Show) -> tuple[Arm, Arm]:
    """ArS and the cell itself, round by round in turn; only the cell's own text is shown."""
    cells = resolve(auto_regressive(session.cell)), session.cell
    warm_up(session, cells, prompt)
    generations = [Generation(cell, session.loaded, prompt) for cell in cells]
    for index, update in interleave(*generations):
        if index == 1:
            show(update.pieces)
    ars, sps = map(arm, cells, generations)
    return ars, sps


def warm_up(session: Session, cells: Sequence[Cell], prompt: Sequence[int]) -> None:
    """A few tokens of every arm, so that the cost of first calls enters no figure."""
    for cell in cells:
        short = replace(cell, max_new_tokens=min(WARM_UP_TOKENS, cell.max_new_tokens))
        for _ in Generation(short, session.loaded, prompt[-WARM_UP_PROMPT:]):
            pass


def arm(cell: Cell, generation: Generation) -> Arm:
    """What has come of `generation`."""
    record = generation.record
    by_rule = plug_in("drafters", cell.drafter).drawn is Drawn.POINT
    return Arm(cell, record, metrics(record.rounds, record.prefill_seconds), by_rule)

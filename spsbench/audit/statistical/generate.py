"""Texts for an audit, made by the decoder under audit itself."""

from collections.abc import Sequence

from spsbench.audit.statistical.suspects import Text
from spsbench.benchmark.generation import Generation
from spsbench.methods.resolve import resolve
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record


def plain_cell(cell: Cell) -> Cell:
    """Auto-regressive sampling by the same decoder, engine and warp."""
    return resolve(cell.auto_regressive)


def text_of(prompt: Sequence[int], record: Record, name: str) -> Text:
    """A record as the audit reads it."""
    return Text(
        tuple(prompt),
        tuple(record.tokens),
        tuple(r.emitted for r in record.rounds),
        tuple(r.drafted for r in record.rounds),
        name,
    )


def generate(cell: Cell, loaded: Loaded, prompt: Sequence[int], sample: str, repeat: int) -> Text:
    """One generation of `cell`, in the loop that ships."""
    generation = Generation(cell, loaded, prompt, sample, repeat)
    for _ in generation:
        pass
    return text_of(prompt, generation.record, f"{sample} #{repeat}")

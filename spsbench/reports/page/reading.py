"""The generations of a page that can be read, and how they were chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.reports.page.gathered import OF_CATEGORY, PROMPTS, Gathered
from spsbench.reports.page.traces import Trace, tokenizer_of, trace
from spsbench.reports.quoting import visible
from spsbench.reports.reporter import Table
from spsbench.settings.labels import Names


def to_read(
    gathered: Sequence[tuple[Table, Gathered]],
    index: dict[tuple[int, str, str | None], int],
    called: Mapping[int, str],
) -> tuple[list[Trace], str]:
    """The generations that can be read, and how they were chosen."""
    made: list[Trace] = []
    tokenizers: dict[str, Any] = {}
    for table, found in gathered:
        names = Names(found.cells.values())
        numbers: dict[str, int] = {}
        for record in found.kept:
            cell = found.cells[record.cell]
            target = cell.models.target
            if target.id not in tokenizers:
                tokenizers[target.id] = None if cell.models.random else tokenizer_of(target)
            number = numbers.setdefault(record.sample, len(numbers) + 1)
            parts = [called[id(table)], names.work(cell), f"prompt {number}"]
            made.append(
                trace(
                    record,
                    name=names.how(cell),
                    group=", ".join(part for part in parts if part),
                    row=index[id(table), record.cell, None],
                    category=None if record.group is None else visible(record.group or "none"),
                    tokenizer=tokenizers[target.id],
                )
            )
    texts = sum(found.texts for _, found in gathered)
    told = f"{len(made):,} of {texts:,} generations can be read here"
    if len(made) < texts:
        told += f": the first {PROMPTS} prompts of each task and setting, one text each"
        if any(each.category is not None for each in made):
            told += f", or {OF_CATEGORY} of each category"
    return made, f"{told}."

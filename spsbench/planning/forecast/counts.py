"""What-if from the counts of a run: another K for an engine whose models are elsewhere.

A shorter draft begins as a longer one does, so that the tokens a round would keep at a smaller K
follow from the recorded rounds. What a round would cost lies between the plain pass and the
measured round, in proportion to K: that is an assumption, and a longer K is not predicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.errors import DataError
from spsbench.metrics.rates import baseline, ratio
from spsbench.reports.figures import TextTable
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names
from spsbench.settings.records import Record


@dataclass(slots=True)
class Counted:
    """The rounds of a cell: how many kept 0, 1, ... tokens, those without a draft among them."""

    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    kept: dict[int, int] = field(default_factory=dict)
    depth: int = 0

    def add(self, record: Record) -> None:
        """Count one generation."""
        for r in record.rounds:
            self.tokens, self.seconds = self.tokens + r.emitted, self.seconds + r.seconds
            self.passes += r.passes
            if r.passes == 1 and r.drafted >= 0 and r.tree is None:
                self.depth = max(self.depth, r.drafted)
                self.kept[r.accepted] = self.kept.get(r.accepted, 0) + 1

    @property
    def round_seconds(self) -> float | None:
        """Return the mean time of a pass; None where the engine does not count passes."""
        return ratio(self.seconds, self.passes)


def what_if(cells: Mapping[str, Cell], records: Iterable[Record]) -> TextTable:
    """Return a row for each smaller K of every cell whose rounds are known one by one.

    Raises:
        DataError: no such cell.
    """
    counts = {name: Counted() for name in cells}
    for record in records:
        if record.error is None and record.cell in counts:
            counts[record.cell].add(record)
    names, rows = Names(cells.values()), list[Sequence[str]]()
    for name, cell in cells.items():
        cell_counts, plain = counts[name], baseline(cell, list(cells.values()))
        cost = None if plain is None else counts[plain.id].round_seconds
        rows += [(names.full(cell), *row) for row in at_each_k(cell_counts, cost)]
    if not rows:
        raise DataError(
            "no rounds with drafts: expected an engine that tells the drafted and accepted tokens "
            "of each. See the table of the run"
        )
    return TextTable(
        "Another K, from the counts of the run",
        ("method", "K", "tokens a round", "round / plain pass", "speed-up"),
        rows,
        (
            "Tokens a round are those of the recorded rounds, cut after K. The cost of a round at "
            "a smaller K is taken between a plain pass and the measured round, in proportion.",
        ),
    )


def at_each_k(counts: Counted, plain: float | None) -> list[tuple[str, str, str, str]]:
    """Return K, tokens a round, cost in plain passes and speed-up, up to the measured K."""
    rounds, rows = sum(counts.kept.values()), []
    measured: Any = counts.round_seconds
    whole = None if not plain or measured is None else measured / plain
    for k in range(1, counts.depth + 1):
        tokens = 1 + sum(min(kept, k) * n for kept, n in counts.kept.items()) / rounds
        cost = None if whole is None else 1 + (whole - 1) * k / counts.depth
        gain = "n/a" if cost is None else f"{tokens / cost:.2f}x"
        rows.append((str(k), f"{tokens:.2f}", "n/a" if cost is None else f"{cost:.2f}", gain))
    return rows

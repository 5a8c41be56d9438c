"""What is told in words, figures and small tables: an audit, a plan, a training."""

from dataclasses import dataclass
from typing import Literal

from spsbench.reports.figure import Figure

Mood = Literal["good", "bad", "open"]
"""How a finding reads at a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of text; the first `names` columns say what a row is."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A finding with what it stands on, for formats that can show it. All text may be others'."""

    title: str
    mood: Mood
    line: str  # the finding in a sentence
    notes: tuple[str, ...] = ()
    says: str = ""  # how its figures are to be read
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()
    run: str = ""  # title of the table, and id of the cell in it, where it is of one
    cell: str = ""
    answers: bool = False  # it is the whole answer of its report: its rows do not say it anew

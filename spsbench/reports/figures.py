"""Plots as plain numbers, independent of the renderer, tables of text, and sections of findings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Point(NamedTuple):
    """A value with an optional interval or spread."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    loaded: bool = False  # timed while other work used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one colour; in a panel with rows, x is the number of a row."""

    name: str
    points: tuple[Point, ...]
    line: int  # index of the line; selects colour and marker in all panels
    best: Point | None = None  # the optimum
    dense: bool = False  # too many points for a marker each
    joined: bool = True  # by a line, in the order of x


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line: a value that does not depend on x."""

    name: str
    y: float
    line: int | None = None  # index of the line whose baseline this is; None = a bound
    loaded: bool = False  # timed while other work used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes with its curves; with `rows`, y is to the right and a row is a name."""

    title: str = ""
    x: str  # axis labels with units
    y: str = ""
    items: tuple[Curve | Level, ...]
    whole: bool = False  # x is an integer
    from_zero: bool = False  # y starts at 0
    empty: str = ""  # reason why the panel is empty
    rows: tuple[str, ...] = ()
    stacked: bool = False  # bars of a row, one behind the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels side by side under one heading; a line has the same name in all panels."""

    title: str
    panels: tuple[Panel, ...]


Status = Literal["good", "bad", "open"]
"""Outcome of a finding; selects its colour."""


class TextTable(NamedTuple):
    """A table of text for any renderer. All text may be user input and must be escaped."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()  # lines below the table
    names: int = 1  # how many of the first columns identify a row
    paper_rows: Sequence[int] = ()  # rows that are the paper's


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A finding with its tables and figures. All text may be user input and must be escaped."""

    title: str
    status: Status
    line: str  # the finding in one sentence
    notes: tuple[str, ...] = ()
    says: str = ""  # how to read the figures
    figures: tuple[Figure, ...] = ()
    tables: tuple[TextTable, ...] = ()
    run: str = ""  # title of the run's table and id of the cell, if the finding belongs to a run
    cell: str = ""
    answers: bool = False  # the section is the whole answer; its rows do not repeat it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A figure of the page with its explanation; `terms` are figures that the page defines."""

    id: str
    title: str
    says: str
    figure: Figure
    terms: tuple[str, ...] = ()

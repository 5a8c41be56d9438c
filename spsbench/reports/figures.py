"""Plots as plain numbers, independent of the renderer, and sheets of findings."""

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
    """A line through points in the order of x."""

    name: str
    points: tuple[Point, ...]
    line: int  # index of the line; selects colour and marker in all panels
    best: Point | None = None  # the optimum
    dense: bool = False  # too many points for a marker each


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line: a value that does not depend on x."""

    name: str
    y: float
    line: int | None = None  # index of the line whose baseline this is; None = a bound
    loaded: bool = False  # timed while other work used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes with its curves."""

    title: str = ""
    x: str  # axis labels with units
    y: str = ""
    items: tuple[Curve | Level, ...]
    whole: bool = False  # x is an integer
    from_zero: bool = False  # y starts at 0
    empty: str = ""  # reason why the panel is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels side by side under one heading; a line has the same name in all panels."""

    title: str
    panels: tuple[Panel, ...]


Mood = Literal["good", "bad", "open"]
"""Outcome of a finding; selects its colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of text; the first `names` columns identify a row."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A finding with its tables and figures. All text may be user input and must be escaped."""

    title: str
    mood: Mood
    line: str  # the finding in one sentence
    notes: tuple[str, ...] = ()
    says: str = ""  # how to read the figures
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()
    run: str = ""  # title of the run's table and id of the cell, if the finding belongs to a run
    cell: str = ""
    answers: bool = False  # the sheet is the whole answer; its rows do not repeat it

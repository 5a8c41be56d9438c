"""A figure as numbers: what a plot draws, whoever draws it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Point(NamedTuple):
    """A value, with its interval or spread where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    loaded: bool = False  # timed while other work kept the machine busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points in the order of x."""

    name: str
    points: tuple[Point, ...]
    line: int  # what it belongs to: one colour and mark in all panels
    best: Point | None = None  # the optimum
    dense: bool = False  # too many points to mark each


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value that does not depend on x."""

    name: str
    y: float
    line: int | None = None  # whose baseline it is; None = a bound that belongs to no line
    loaded: bool = False  # timed while other work kept the machine busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str = ""
    x: str  # what is on each axis, with its unit
    y: str = ""
    items: tuple[Curve | Level, ...]
    whole: bool = False  # x counts something
    from_zero: bool = False  # y begins at 0
    empty: str = ""  # why there is nothing to draw, where there is nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels side by side under one heading; a line has one name in all of them."""

    title: str
    panels: tuple[Panel, ...]


# What is told in words, figures and small tables: an audit, a plan, a training.

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

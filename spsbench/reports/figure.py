"""A figure as numbers: what a plot draws, whoever draws it."""

from dataclasses import dataclass
from typing import NamedTuple


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

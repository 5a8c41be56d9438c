"""What a figure of the page is made of: numbers, the rows that they are of, and what they mean.

A point knows its row (`Mark.row`, an index into all rows of the page), so that filters need no
logic but that of the rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from spsbench.reports.figure import Curve, Figure, Level, Point
from spsbench.reports.page.safe import shown

Kind = Literal["forest", "curves", "parts", "scatter"]
BARS = "Bars are 95 % intervals over samples."


class Mark(NamedTuple):
    """A point with its interval, and the row that it is of."""

    row: int  # -1 = none: no filter hides it
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    kind: str = ""  # "loaded": timed under load; "paper": Chen et al. 2023


FREE = -1  # the row of marks that are of none
LOADED, PAPER = "loaded", "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Marks of one colour."""

    name: str
    marks: tuple[Mark, ...]
    level: bool = False  # a value for all x, dashed
    dense: bool = False  # too many to mark each
    line: int | None = None  # the colour; None = that of its rows' methods
    best: int | None = None  # which mark is the optimum


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """One pair of axes."""

    title: str
    x: str
    y: str = ""
    series: tuple[Series, ...]
    from_zero: bool = False
    diagonal: bool = False  # where x and y are equal
    one: bool = False  # a line at 1
    zero: bool = False  # a line at 0
    unit: str = ""
    digits: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Axes under one heading, what they mean, and what the bars on them are."""

    id: str
    title: str
    kind: Kind
    says: str  # for all readers, and for those who do not see it
    terms: tuple[str, ...] = ()  # figures that it shows: see `definitions`
    axes: tuple[Axes, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def exhibit(axes: Sequence[Axes], **about: Any) -> list[Exhibit]:
    """None where there is nothing to draw."""
    drawn = tuple(each for each in axes if each.series)
    return [Exhibit(axes=drawn, **about)] if drawn else []


def drawn(figure: Figure, **about: Any) -> list[Exhibit]:
    """A figure of numbers as every format has it, whatever it is of."""
    return exhibit(
        [
            Axes(
                title=shown(panel.title),
                x=shown(panel.x),
                y=shown(panel.y),
                from_zero=panel.from_zero,
                series=tuple(_series(item) for item in panel.items),
            )
            for panel in figure.panels
        ],
        kind="curves",
        **about,
    )


def _series(item: Curve | Level) -> Series:
    name = shown(item.name, 200)
    if isinstance(item, Level):
        mark = Mark(FREE, 0, item.y, kind=LOADED if item.loaded else "")
        return Series(name=name, marks=(mark,), level=True, line=item.line)
    best = None if item.best is None else item.points.index(item.best)
    marks = tuple(map(_free, item.points))
    return Series(name=name, marks=marks, line=item.line, dense=item.dense, best=best)


def _free(point: Point) -> Mark:
    return Mark(FREE, *point[:4], kind=LOADED if point.loaded else "")

"""What a figure of the page is made of: numbers, the rows that they are of, and what they mean.

A point knows its row (`Mark.row`, an index into all rows of the page), so that filters need no
logic but that of the rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["forest", "curves", "parts", "scatter"]
BARS = "Bars are 95 % intervals over samples."


class Mark(NamedTuple):
    """A point with its interval, and the row that it is of."""

    row: int
    x: float
    y: float
    low: float | None = None
    high: float | None = None


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

"""The figures of the page as numbers: what is drawn, of which rows, and what it means.

A point knows its row (`Mark.row`, an index into all rows of the page), so that filters need no
logic but that of the rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from spsbench.figures.intervals import Estimate
from spsbench.figures.quality import PERCENT
from spsbench.figures.summary import Summary
from spsbench.reports.columns import headline
from spsbench.reports.figure import Curve, Level
from spsbench.reports.figure1 import K, figure1, lines

Kind = Literal["forest", "curves", "parts", "scatter"]


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


HEADLINES = (
    ("speedup", "Speed-up over ArS", "x", 2, True),
    ("mean_token_time_ms", "Mean token time, ms", "", 2, False),
    ("block_efficiency", "Block efficiency tau, tokens a round", "", 2, False),
    ("alpha", "Acceptance rate alpha", "", 3, False),
    ("ttft_ms", "Time to the first token, ms", "", 1, False),
)
BARS = "Bars are 95 % intervals over samples."


def headlines(rows: Sequence[Summary]) -> list[Exhibit]:
    """Every row's headline figures, one beside the other; and its scores."""
    asked = [(name, title, unit, digits, one) for name, title, unit, digits, one in HEADLINES]
    for metric in sorted(headline(rows)):
        asked.append((f"quality.{metric}", metric, "", 2 if metric in PERCENT else 4, False))
    axes = [
        Axes(title=title, x=title, series=(marks,), one=one, unit=unit, digits=digits)
        for name, title, unit, digits, one in asked
        if (marks := _of(rows, name)).marks
    ]
    return _exhibit(
        axes,
        id="headlines",
        title="Every configuration at a glance",
        kind="forest",
        says=f"One line a configuration. {BARS}",
        terms=tuple(name.partition(".")[0] for name, *_ in asked),
    )


def against_k(tables: Sequence[tuple[str, Sequence[tuple[int, Summary]]]]) -> list[Exhibit]:
    """Figure 1 and three more panels, where some line has more than one K.

    Args:
        tables: a name, and rows with their indices; each drawn by `figure1`.
    """
    if not any(len(line) > 2 for _, rows in tables for line in lines(_bare(rows)).values()):
        return []
    panels: dict[str, list[Series]] = {}
    looks: dict[str, tuple[bool, bool]] = {}
    colour = 0
    for name, rows in tables:
        found = list(lines(_bare(rows)).values())
        index = {id(s): i for i, s in rows}
        for panel in figure1(_bare(rows), name).panels:
            looks[panel.title] = panel.from_zero, False
            for item in panel.items:
                members = found[item.line or 0]
                panels.setdefault(panel.title, []).append(
                    _series(item, members, index, name, colour)
                )
        for title, read in MORE_BY_K.items():
            looks[title] = False, title.startswith("Speed-up")
            for at, (label, members) in enumerate(lines(_bare(rows)).items()):
                known = [(s, e) for s in members if s.cell.k and (e := read(s)) is not None]
                made = tuple(
                    Mark(index[id(s)], s.cell.k or 0, e.mean, e.low, e.high) for s, e in known
                )
                panels.setdefault(title, []).append(
                    Series(name=_named(name, label), marks=made, line=colour + at)
                )
        colour += len(found)
    return _exhibit(
        [
            Axes(title=title, x=K, series=tuple(s), from_zero=looks[title][0], one=looks[title][1])
            for title, s in panels.items()
        ],
        id="against-k",
        title="Against K: Figure 1 of the paper, and what explains it",
        kind="curves",
        says="Dashed: ArS. Ringed: the least time. Bars are 95 % intervals over samples; on the time to so many tokens "
        "they are one standard deviation over generations.",
        terms=("horizon_time_ms", "efficiency", "loop_time_ms", "speedup", "block_efficiency"),
    )


MORE_BY_K: dict[str, Callable[[Summary], Estimate | None]] = {
    "Speed-up over ArS": lambda s: s.speedup,
    "Block efficiency tau": lambda s: s.block_efficiency,
    "Acceptance rate alpha": lambda s: s.alpha,
}


def by_position(rows: Sequence[Summary], names: Sequence[str]) -> list[Exhibit]:
    """Kept over tested at each position of a round."""
    series = [
        Series(
            name=names[i],
            marks=tuple(
                Mark(i, at, e.mean, e.low, e.high)
                for at, e in enumerate(s.alpha_at, start=1)
                if e is not None
            ),
        )
        for i, s in enumerate(rows)
    ]
    return _exhibit(
        [Axes(title="", x="position in the round", y="kept / tested", series=_some(series))],
        id="by-position",
        title="Acceptance by position",
        kind="curves",
        says="How often the token at each position was kept, of those that the rule looked at. "
        f"A flat line means that acceptances are independent. {BARS}",
        terms=("alpha_at",),
    )


def parts_of_round(rows: Sequence[Summary]) -> list[Exhibit]:
    """Where a round's time goes: its mean, parted by the shares of the decode time."""
    shares: dict[str, Callable[[Summary], Estimate | None]] = {
        "draft": lambda s: s.draft_share,
        "target": lambda s: s.target_share,
        "verify and the rest": lambda s: s.verify_share,
    }
    series = [
        Series(
            name=name,
            line=at,
            marks=tuple(
                Mark(i, i, *_part(s.loop_time_ms.mean, e))
                for i, s in enumerate(rows)
                if s.loop_time_ms is not None and (e := read(s)) is not None
            ),
        )
        for at, (name, read) in enumerate(shares.items())
    ]
    return _exhibit(
        [Axes(title="", x="loop time, ms", series=_some(series))],
        id="parts",
        title="Where a round's time goes",
        kind="parts",
        says="The loop time of each configuration, parted by the shares of its decode time. The "
        "intervals in the table are those of the shares.",
        terms=("loop_time_ms", "draft_share", "target_share", "verify_share"),
    )


def speed_and_quality(rows: Sequence[Summary]) -> list[Exhibit]:
    """Each score against the mean token time."""
    axes = []
    for metric in sorted(headline(rows)):
        marks = tuple(
            Mark(i, s.mean_token_time_ms.mean, e.mean, e.low, e.high)
            for i, s in enumerate(rows)
            if s.mean_token_time_ms is not None and (e := s.quality.get(metric)) is not None
        )
        if marks:
            series = (Series(name=metric, marks=marks),)
            axes.append(Axes(title=metric, x="mean token time, ms", y=metric, series=series))
    return _exhibit(
        axes,
        id="speed-quality",
        title="Speed against quality",
        kind="scatter",
        says="Left is faster, up is better. A lossless method moves a point to the left and "
        f"leaves its height where it was, up to chance. {BARS}",
        terms=("mean_token_time_ms", "quality"),
    )


def predicted(rows: Sequence[Summary]) -> list[Exhibit]:
    """The speed-up that alpha and the costs predict, against the measured one."""
    marks = tuple(
        Mark(i, s.predicted_speedup.mean, s.speedup.mean, s.speedup.low, s.speedup.high)
        for i, s in enumerate(rows)
        if s.cell.k and s.predicted_speedup is not None and s.speedup is not None
    )
    series = (Series(name="speed-up", marks=marks),) if marks else ()
    return _exhibit(
        [Axes(title="", x="predicted", y="measured", series=series, diagonal=True, unit="x")],
        id="predicted",
        title="Predicted and measured speed-up",
        kind="scatter",
        says="On the line the two agree; below it the run was slower than its acceptance and "
        f"costs predict. {BARS}",
        terms=("predicted_speedup", "speedup"),
    )


def _of(rows: Sequence[Summary], figure: str) -> Series:
    known = [(i, s.figures.get(figure)) for i, s in enumerate(rows)]
    marks = tuple(Mark(i, i, e.mean, e.low, e.high) for i, e in known if e is not None)
    return Series(name=figure, marks=marks)


def _series(
    item: Curve | Level, members: Sequence[Summary], index: dict[int, int], run: str, colour: int
) -> Series:
    line = None if item.line is None else colour + item.line
    if isinstance(item, Level):
        plain = index[id(members[0])]
        return Series(
            name=_named(run, item.name), marks=(Mark(plain, 0, item.y),), level=True, line=line
        )
    of_k = {s.cell.k: index[id(s)] for s in members}
    marks = tuple(Mark(of_k[int(p.x)], *p) for p in item.points)
    best = None if item.best is None else item.points.index(item.best)
    return Series(name=_named(run, item.name), marks=marks, line=line, dense=item.dense, best=best)


def _named(run: str, name: str) -> str:
    return f"{run}: {name}" if run else name


def _part(whole: float, share: Estimate) -> tuple[float, float | None, float | None]:
    ends = (share.low, share.high)
    low, high = (None if end is None else whole * end for end in ends)
    return whole * share.mean, low, high


def _bare(rows: Sequence[tuple[int, Summary]]) -> list[Summary]:
    return [s for _, s in rows]


def _some(series: Sequence[Series]) -> tuple[Series, ...]:
    return tuple(each for each in series if each.marks)


def _exhibit(axes: Sequence[Axes], **about: Any) -> list[Exhibit]:
    """None where there is nothing to draw."""
    drawn = tuple(each for each in axes if each.series)
    return [Exhibit(axes=drawn, **about)] if drawn else []

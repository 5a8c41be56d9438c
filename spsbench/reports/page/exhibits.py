"""The figures of the page, from the rows of all its tables."""

from collections.abc import Callable, Sequence

from spsbench.figures.intervals import Estimate
from spsbench.figures.quality import PERCENT
from spsbench.figures.summary import Summary
from spsbench.reports.columns import headline
from spsbench.reports.page.marks import BARS, Axes, Exhibit, Mark, Series, exhibit
from spsbench.reports.quoting import visible

HEADLINES = (
    ("speedup", "Speed-up over ArS", "x", 2, True),
    ("mean_token_time_ms", "Mean token time, ms", "", 2, False),
    ("block_efficiency", "Block efficiency tau, tokens a round", "", 2, False),
    ("alpha", "Acceptance rate alpha", "", 3, False),
    ("ttft_ms", "Time to the first token, ms", "", 1, False),
)


def headlines(rows: Sequence[Summary]) -> list[Exhibit]:
    """Every row's headline figures, one beside the other; and its scores."""
    asked = [(name, title, unit, digits, one) for name, title, unit, digits, one in HEADLINES]
    for metric in sorted(headline(rows)):
        asked.append(
            (f"quality.{metric}", visible(metric), "", 2 if metric in PERCENT else 4, False)
        )
    axes = [
        Axes(title=title, x=title, series=(marks,), one=one, unit=unit, digits=digits)
        for name, title, unit, digits, one in asked
        if (marks := _of(rows, name)).marks
    ]
    return exhibit(
        axes,
        id="headlines",
        title="Every configuration at a glance",
        kind="forest",
        says=f"One line a configuration. {BARS}",
        terms=tuple(name.partition(".")[0] for name, *_ in asked),
    )


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
    return exhibit(
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
    return exhibit(
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
            name = visible(metric)
            series = (Series(name=name, marks=marks),)
            axes.append(Axes(title=name, x="mean token time, ms", y=name, series=series))
    return exhibit(
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
    return exhibit(
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


def _part(whole: float, share: Estimate) -> tuple[float, float | None, float | None]:
    ends = (share.low, share.high)
    low, high = (None if end is None else whole * end for end in ends)
    return whole * share.mean, low, high


def _some(series: Sequence[Series]) -> tuple[Series, ...]:
    return tuple(each for each in series if each.marks)

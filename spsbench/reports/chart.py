"""Speed-ups as bars of text, for the end of a command on a terminal."""

from collections.abc import Iterator, Sequence

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import full
from spsbench.reports.text import visible
from spsbench.settings.labels import Names

SHADES, PLAIN_SHADES = "█▓░│", "#=-|"
LABEL, BAR = 44, 48  # characters at most


def chart(rows: Sequence[Summary], width: int, *, plain: bool = False) -> str:
    """Return a bar for each row that has a speed-up, under a heading for each task and setting.

    A bar is full up to the low end of its interval, lighter up to the estimate, lightest up to the
    high end. The chart is empty if fewer than two methods have a speed-up.

    Args:
        rows: one row per cell; rows of groups are omitted.
        width: columns of the terminal.
        plain: whether only ASCII may be used.
    """
    gains = [(row, gain) for row in rows if row.group is None and (gain := speedup(row))]
    if len({row.cell.method for row, _ in gains}) < 2:
        return ""
    names = Names(row.cell for row, _ in gains)
    labels = [visible(names.how(row.cell)) for row, _ in gains]
    wide = min(LABEL, max(map(len, labels)))
    room = max(10, min(BAR, width - wide - 38))
    scale = max(1.0, *(gain.high or gain.mean for _, gain in gains)) / room

    def lines() -> Iterator[str]:
        heading = None
        for (row, gain), label in zip(gains, labels, strict=True):
            if heading != (heading := names.work(row.cell)):
                yield f"speed-up over plain sampling: {visible(heading)}"
            drawn = bar(gain, scale, room, PLAIN_SHADES if plain else SHADES)
            note = "" if row.at_any_load("speedup")[0] else " predicted"
            yield f"  {label[:wide]:<{wide}}  {drawn}  {full(gain, 2, 'x')}{note}"

    return "\n".join(lines()) + "\n"


def speedup(row: Summary) -> Estimate | None:
    """Return the measured speed-up of a row, idle or under load, else the speed-up of a plan."""
    return row.at_any_load("speedup")[0] or row.predicted_speedup


def bar(gain: Estimate, scale: float, room: int, shades: str) -> str:
    """Return `room` characters, each worth `scale`; a blank at 1 is marked."""
    low = gain.mean if gain.low is None else gain.low
    high = gain.mean if gain.high is None else gain.high
    ends = (low, gain.mean, high)
    at_one = round(1 / scale) - 1

    def cell(i: int) -> str:
        middle = (i + 0.5) * scale
        for shade, end in zip(shades, ends, strict=False):
            if middle < end:
                return shade
        return shades[3] if i == at_one else " "

    return "".join(map(cell, range(room)))

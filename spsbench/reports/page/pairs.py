"""The same configuration in several runs, paired by prompt and repeat."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spsbench.metrics.intervals import PLAIN, Estimate
from spsbench.metrics.parity import Parity, Qualities, parity, parity_margins
from spsbench.metrics.rates import RATES
from spsbench.metrics.sums import Tally, paired
from spsbench.metrics.text_checks import Texts, identical
from spsbench.reports.columns import ABSENT, full
from spsbench.reports.figures import Curve, Exhibit, Figure, Level, Panel, Point, TextTable
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names

TIMES = "Times as fast"


class Side(NamedTuple):
    """Aggregates of one run, by cell."""

    name: str
    tallies: Mapping[str, tuple[Cell, Tally]]
    qualities: Mapping[str, Qualities] = {}  # scores in [0, 1]
    greedy: Mapping[str, Texts] = {}


class Pairing(NamedTuple):
    """A configuration of a later run compared with the first run."""

    name: str
    run: str
    shared: int  # generations (sample, repeat) timed in both runs
    differences: Mapping[str, Estimate]  # ratio of token times; tau and scores, this run less first
    quality: Sequence[Parity] = ()  # `ars` is the first run, `sps` this run


def pairings(first: Side, runs: Sequence[Side]) -> list[Pairing]:
    """Pair every configuration of the later runs with the same names in the first run."""
    keys = Names(cell for cell, _ in first.tallies.values())
    first_run = {
        (cell.task, keys.full(cell)): (cell, tally) for cell, tally in first.tallies.values()
    }
    return [
        _pairing(first, run, names.full(cell), base, (cell, tally))
        for run in runs
        for names in [Names(cell for cell, _ in run.tallies.values())]
        for cell, tally in run.tallies.values()
        if (base := first_run.get((cell.task, names.full(cell)))) and base[1].keys and tally.keys
    ]


def _pairing(
    first: Side, run: Side, name: str, base: tuple[Cell, Tally], ours: tuple[Cell, Tally]
) -> Pairing:
    token_time, tau = RATES["mean_token_time_ms"], RATES["block_efficiency"]
    tallies = base[1], ours[1]
    differences: dict[str, Estimate | None] = {}
    if timed := paired(tallies, "started"):
        differences[TIMES] = timed.estimate(
            lambda before, after: token_time(before) / token_time(after), "started"
        )
    if counted := paired(tallies, "rounds"):
        differences["tau, difference"] = counted.estimate(
            lambda before, after: tau(after) - tau(before), "rounds", PLAIN
        )
    before, after = first.qualities.get(base[0].id, {}), run.qualities.get(ours[0].id, {})
    same = identical(run.greedy.get(ours[0].id, {}), first.greedy.get(base[0].id, {}))
    margins = parity_margins()
    tests = (
        parity(metric, before[metric], after[metric], margins[metric], identical=same)
        for metric in after
        if metric in before and metric in margins
    )
    quality = [test for test in tests if test is not None]
    differences |= {f"{test.metric}, difference": test.shown for test in quality}
    known = {title: estimate for title, estimate in differences.items() if estimate is not None}
    return Pairing(name, run.name, len(base[1].keys.keys() & ours[1].keys.keys()), known, quality)


def compared(pairs: Sequence[Pairing], base: str) -> tuple[Exhibit, TextTable]:
    """Return the differences between runs as a plot and as a table; `base` names the first run."""
    titles = list(dict.fromkeys(title for pair in pairs for title in pair.differences))
    names = tuple(f"{pair.name}, {pair.run}" for pair in pairs)
    panels, rows = [], []
    for title in titles:
        values = [(at, pair.differences.get(title)) for at, pair in enumerate(pairs)]
        points = tuple(Point(at, *e[:3], e.loaded) for at, e in values if e is not None)
        none = Level(name="no difference", y=1.0 if title == TIMES else 0.0)
        curve = Curve(name="difference", points=points, line=0)
        panels.append(Panel(title=title, x="", items=(none, curve), rows=names))
    for pair in pairs:
        estimates = [(title, pair.differences.get(title)) for title in titles]
        cells = [
            ABSENT if estimate is None else full(estimate, 3, "x" if title == TIMES else "")
            for title, estimate in estimates
        ]
        verdicts = "; ".join(f"{test.metric} {test}" for test in pair.quality)
        rows.append([pair.name, pair.run, str(pair.shared), *cells, verdicts])
    says = (
        f"Each configuration against that of {base}, paired by prompt and repeat, so that "
        "differences between prompts cancel. An interval that crosses the dotted line shows no "
        "difference. Intervals are over prompts and do not include how a machine varies from day "
        "to day."
    )
    title = "Differences between runs"
    headings = ("configuration", "run", "pairs", *titles, "quality")
    return (
        Exhibit(
            id="beside",
            title=title,
            says=says,
            figure=Figure(title=title, panels=tuple(panels)),
            terms=("mean_token_time_ms", "block_efficiency", "quality"),
        ),
        TextTable("Paired differences", headings, rows, names=2),
    )

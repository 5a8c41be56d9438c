"""Figure 1 of the paper as marks, and the panels that explain it."""

from collections.abc import Sequence

from spsbench.metrics.summary import Summary
from spsbench.reports.figure import Curve, Level
from spsbench.reports.figure1 import K, figure1, lines
from spsbench.reports.page.marks import LOADED, Axes, Exhibit, Mark, Series, exhibit
from spsbench.reports.page.safe import shown


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
                known = [(s, *s.at_any_load(read)) for s in members if s.cell.k]
                made = tuple(
                    Mark(index[id(s)], s.cell.k or 0, e.mean, e.low, e.high, LOADED * loaded)
                    for s, e, loaded in known
                    if e is not None
                )
                panels.setdefault(title, []).append(
                    Series(name=_named(name, label), marks=made, line=colour + at)
                )
        colour += len(found)
    return exhibit(
        [
            Axes(title=title, x=K, series=tuple(s), from_zero=looks[title][0], one=looks[title][1])
            for title, s in panels.items()
        ],
        id="against-k",
        title="Against K: Figure 1 of the paper, and what explains it",
        kind="curves",
        says="Dashed: ArS. Ringed: the least time. Bars are 95 % intervals over samples; on the "
        "time to so many tokens they are one standard deviation over generations.",
        terms=("horizon_time_ms", "efficiency", "loop_time_ms", "speedup", "block_efficiency"),
    )


MORE_BY_K = {
    "Speed-up over ArS": "speedup",
    "Block efficiency tau": "block_efficiency",
    "Acceptance rate alpha": "alpha",
}


def _series(
    item: Curve | Level, members: Sequence[Summary], index: dict[int, int], run: str, colour: int
) -> Series:
    line = None if item.line is None else colour + item.line
    if isinstance(item, Level):
        plain = index[id(members[0])]
        return Series(
            name=_named(run, item.name),
            marks=(Mark(plain, 0, item.y, kind=LOADED * item.loaded),),
            level=True,
            line=line,
        )
    of_k = {s.cell.k: index[id(s)] for s in members}
    marks = tuple(Mark(of_k[int(p.x)], *p[:4], LOADED * p.loaded) for p in item.points)
    best = None if item.best is None else item.points.index(item.best)
    return Series(name=_named(run, item.name), marks=marks, line=line, dense=item.dense, best=best)


def _named(run: str, name: str) -> str:
    return shown(f"{run}: {name}" if run else name, 200)


def _bare(rows: Sequence[tuple[int, Summary]]) -> list[Summary]:
    return [s for _, s in rows]

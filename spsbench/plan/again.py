"""Plans without models: drawn again from their folders, or made of a trace and a table of costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.forecast.costs_file import read_costs
from spsbench.forecast.outlook import outlook
from spsbench.plan.arms import candidate_of, replayable
from spsbench.plan.conduct import traced_of
from spsbench.plan.folder import load
from spsbench.plan.given import cells_of_trace
from spsbench.plan.planned import Planned
from spsbench.plan.texts import measured
from spsbench.settings.cell import Cell
from spsbench.settings.planning import Planning
from spsbench.store.traces import read_traces


def again(folder: Path, planning: Planning) -> Planned:
    """The plan in a folder, under what is asked as if now.

    Raises:
        SpsError: there is none, it is not finished, or it is damaged.
    """
    kept = load(folder)
    costs_file = folder / kept.costs
    if not costs_file.exists():
        raise DataError(
            f"no costs yet ({folder}): expected a plan that was finished. Go on with it: --resume"
        )
    traces = read_traces([folder / each for each in kept.texts])
    asked = planning.factors
    costs = read_costs(costs_file).scaled(**{**kept.factors, **asked})
    cells = {str(candidate_of(cell)): cell for cell in kept.cells}
    wanted = [cell for cell in cells.values() if replayable(cell)]
    real = kept.confirm is not None and not asked
    return Planned(
        folder=folder,
        outlook=outlook(map(candidate_of, wanted), traced_of(traces), costs),
        cells=cells,
        measured=measured(folder / str(kept.confirm), list(cells.values())) if real else {},
        about=f"{kept.identity['target.id']}, {kept.identity['task']}",
        every=planning.every,
    )


def of_files(planning: Planning, asked: Mapping[str, Any]) -> Planned:
    """A trace under a table of costs, of this machine or another.

    Raises:
        SpsError: files that are missing, damaged, or do not go together.
    """
    paths = [Path(each) for each in planning.trace]
    traces = read_traces(paths)
    if planning.costs is None:
        raise DataError("no costs: expected a table of them. Name one with --costs")
    costs = read_costs(planning.costs).scaled(**planning.factors)
    cells: dict[str, Cell] = {
        str(candidate_of(cell)): cell for cell in cells_of_trace(traces, costs, asked, planning.k)
    }
    return Planned(
        folder=None,
        outlook=outlook(map(candidate_of, cells.values()), traced_of(traces), costs),
        cells=cells,
        measured={},
        about=f"{', '.join(map(str, paths))} under {planning.costs}",
        every=planning.every,
    )

"""Plans without models: drawn again from their folders, or made of a trace and a table of costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.planning.arms import named, replayable
from spsbench.planning.folder import Kept, check_whole, load
from spsbench.planning.forecast.costs_file import read_costs
from spsbench.planning.given import cells_of_trace, traces_given
from spsbench.planning.material import Material, traced_of
from spsbench.planning.planned import Planned
from spsbench.planning.texts import measured, missing
from spsbench.settings.commands import Planning
from spsbench.store.traces import read_traces


def again(folder: Path, planning: Planning) -> Planned:
    """The plan in a folder, under what is asked as if now.

    Raises:
        SpsError: there is none, it is not finished, or it is damaged.
    """
    kept, found = material(folder, planning)
    cells = named(kept.cells)
    real = kept.confirm is not None and not planning.factors
    run = folder / str(kept.confirm), list(cells.values())
    return Planned(
        folder=folder,
        outlook=found.outlook(),
        cells=cells,
        measured=measured(*run) if real else {},
        missing=missing(*run) if real else {},
        unmeasured=planning.unmeasured or "the plan was made without real rounds",
        about=f"{kept.identity['target.id']}, {kept.identity['task']}",
        every=planning.every,
    )


def material(folder: Path, planning: Planning) -> tuple[Kept, Material]:
    """What a plan stands on.

    Raises:
        SpsError: there is none, it is not finished, or it is damaged.
    """
    kept = load(folder)
    check_whole(folder)
    costs_file = folder / kept.costs
    if not costs_file.exists():
        raise DataError(
            f"no costs yet ({folder}): expected a plan that was finished. Go on with it: --resume"
        )
    texts = [folder / each for each in kept.texts]
    traces = read_traces(texts)
    costs = read_costs(costs_file).scaled(**{**kept.factors, **planning.factors})
    wanted = list(filter(replayable, named(kept.cells).values()))
    return kept, Material(costs=costs, cells=wanted, traced=traced_of(traces))


def of_files(planning: Planning, asked: Mapping[str, Any]) -> Planned:
    """A trace under a table of costs, of this machine or another.

    Raises:
        SpsError: files that are missing, damaged, or do not go together.
    """
    paths, found = material_of_files(planning, asked)
    return Planned(
        folder=None,
        outlook=found.outlook(),
        cells=named(found.cells),
        measured={},
        unmeasured=planning.unmeasured,
        about=f"{', '.join(map(str, paths))} under {planning.costs}",
        every=planning.every,
    )


def material_of_files(planning: Planning, asked: Mapping[str, Any]) -> tuple[list[Path], Material]:
    """The same of files, and which traces they are.

    Raises:
        SpsError: files that are missing, damaged, or do not go together.
    """
    paths = [Path(each) for each in planning.trace]
    traces = traces_given(paths)
    if planning.costs is None:
        raise DataError("no costs: expected a table of them. Name one with --costs")
    costs = read_costs(planning.costs).scaled(**planning.factors)
    cells = named(cells_of_trace(traces, costs, asked, planning.k))
    return paths, Material(costs=costs, cells=list(cells.values()), traced=traced_of(traces))

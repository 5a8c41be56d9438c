"""A run folder -> its tables: summaries with a title that says what they stand on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError
from spsbench.figures.parity import MARGINS
from spsbench.figures.quality import Combine, average
from spsbench.figures.summaries import summaries
from spsbench.figures.summary import Summary
from spsbench.registry import find
from spsbench.reports.programs import judged_notes
from spsbench.reports.remarks import ceilings, findings
from spsbench.reports.reporter import Title
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key, Record, Score
from spsbench.store.manifest import Manifest
from spsbench.store.records import segmented
from spsbench.tasks.scores import read_scores


class Table(NamedTuple):
    """One table of a run."""

    title: Title
    rows: list[Summary]
    ceiling_ms: float | None  # the least time of an ArS token that memory allows; None = unknown

    @property
    def whole(self) -> list[Summary]:
        """The rows over all groups: one a cell."""
        return [row for row in self.rows if row.group is None]


def tables(
    folder: Path, margins: Mapping[str, float] = MARGINS, *, by_group: bool = False
) -> list[Table]:
    """One table for each machine that worked on the run: their timings are not pooled.

    With `by_group`, rows of each group of the task stand above those of all.

    Raises:
        SpsError: no run, or one that is damaged.
    """
    manifest = Manifest.load(folder)
    cells = list(manifest.configurations(folder).values())
    scores = list(read_scores(folder))
    machines = [_machine(segment) for segment in manifest.segments]
    distinct = list(dict.fromkeys(machines)) or [""]
    made = []
    for number, machine in enumerate(distinct, start=1):
        seen: set[Key] = set()
        rows = _rows(folder, cells, scores, machines, machine, seen, by_group)
        own = [score for score in scores if score.key in seen]
        part = f" ({number} of {len(distinct)} machines or settings)" if len(distinct) > 1 else ""
        known = _provenance(manifest, machines, machine)
        whole = [row for row in rows if row.group is None]
        notes = findings(whole, own, combine_of, margins) + ceilings(whole, known)
        notes += judged_notes(folder, cells)
        asked = manifest.experiment
        titles = dict.fromkeys(p["title"] for p in asked.get("parts", ()))
        name = (asked.get("title") or folder.absolute().name) + part
        title = Title(name, "; ".join(titles), tuple(notes))
        made.append(Table(title, rows, _lowest(known)))
    return made


def combine_of(cell: Cell) -> Combine:
    """The task's way from scores to one value a sample; needs no data."""
    if cell.work.task is None:
        return average
    try:
        combine: Combine = find("tasks", cell.work.task.name).load().combine
    except KeyError:  # a task of a package that is not installed here
        return average
    return combine


def _rows(
    folder: Path,
    cells: Sequence[Cell],
    scores: Sequence[Score],
    machines: Sequence[str],
    machine: str,
    seen: set[Key],
    by_group: bool,
) -> list[Summary]:
    """The summaries of one machine's records; `seen` takes their keys."""

    def records() -> Iterator[Record]:
        for placed in segmented(folder):
            if machines[placed.segment] == machine:
                seen.add(placed.record.key)
                yield placed.record

    # read after the records: a score counts where its record does
    own = (score for score in scores if score.key in seen)
    try:
        return summaries(cells, records(), own, combine=combine_of, by_group=by_group)
    except (ValueError, KeyError) as error:
        raise DataError(
            f"records that do not fit their manifest ({folder}: {error}): expected one run. "
            "Restore the folder from a copy"
        ) from error


def _machine(segment: Mapping[str, Any]) -> str:
    """What makes timings comparable: the hardware, and what was changed by force."""
    hardware = segment.get("provenance", {}).get("hardware")
    return json.dumps([hardware, segment.get("differences")], sort_keys=True)


def _provenance(manifest: Manifest, machines: Sequence[str], machine: str) -> Mapping[str, Any]:
    if machine not in machines:
        return {}
    known: Mapping[str, Any] = manifest.segments[machines.index(machine)].get("provenance", {})
    return known


def _lowest(provenance: Mapping[str, Any]) -> float | None:
    """The bound of the only target; of several, none can stand for all."""
    memory = provenance.get("memory") or {}
    sizes = list(memory.get("weights", {}).values())
    return 1e3 * sizes[0] / memory["bandwidth"] if len(sizes) == 1 else None

"""Run folders -> a report: summaries with all that is said of them."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.figures.parity import MARGINS
from spsbench.figures.quality import Combine, average
from spsbench.figures.summaries import summaries
from spsbench.figures.summary import Summary
from spsbench.figures.terms import Dialect
from spsbench.registry import find
from spsbench.reports.dialect import TermsTally
from spsbench.reports.programs import judged_notes
from spsbench.reports.remarks import ceilings, findings
from spsbench.reports.reporter import Report, Table, Title, table_of
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key, Record, Score
from spsbench.store.manifest import Manifest
from spsbench.store.records import segmented
from spsbench.tasks.scores import read_scores


def report_on(
    folders: Sequence[Path], *, by_group: bool = False, dialect: Dialect | None = None
) -> Report:
    """The tables of runs as one document.

    Raises:
        SpsError: no run, or one that is damaged.
    """
    made = [tables(folder, by_group=by_group, dialect=dialect) for folder in folders]
    names = [_name(Manifest.load(folder), folder) for folder in folders]
    return Report(", ".join(dict.fromkeys(names)), [table for own in made for table in own])


def tables(
    folder: Path,
    margins: Mapping[str, float] = MARGINS,
    *,
    by_group: bool = False,
    dialect: Dialect | None = None,
) -> list[Table]:
    """One table for each machine that worked on the run: their timings are not pooled.

    With `by_group`, rows of each group of the task stand above those of all. Under a `dialect` the
    figures are that project's.

    Raises:
        SpsError: no run, or one that is damaged.
    """
    manifest = Manifest.load(folder)
    cells = list(manifest.configurations(folder).values())
    scores = list(read_scores(folder))
    name, titles = _name(manifest, folder), _titles(manifest)
    machines = [_machine(segment) for segment in manifest.segments]
    distinct = list(dict.fromkeys(machines)) or [""]
    made = []
    for number, machine in enumerate(distinct, start=1):
        here = {i for i, one in enumerate(machines) if one == machine}
        part = f" ({number} of {len(distinct)} machines or settings)" if len(distinct) > 1 else ""
        starts = [manifest.segments[i] for i in sorted(here)]
        known: Mapping[str, Any] = starts[0].get("provenance", {}) if starts else {}
        source = partial(_records, folder, here)
        terms = TermsTally(cells, dialect)
        seen: set[Key] = set()
        rows = _rows(folder, cells, scores, _tapped(source(), seen, terms), seen, by_group)
        if dialect is None:
            whole = [row for row in rows if row.group is None]
            own = [score for score in scores if score.key in seen]
            notes = findings(whole, own, combine_of, margins) + ceilings(whole, known)
            notes += judged_notes(folder, cells)
        else:
            rows, notes = terms.beside(rows), list(dialect.lines)
        made.append(
            table_of(
                rows,
                Title(name + part, titles, tuple(notes)),
                shown=terms.columns(rows) if dialect else None,
                ceiling_ms=_lowest(known),
                provenance=starts,
                records=source,
            )
        )
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
    records: Iterator[Record],
    seen: set[Key],
    by_group: bool,
) -> list[Summary]:
    """The summaries of one machine's records; `seen` has the keys of those that were read."""
    # read after the records: a score counts where its record does
    own = (score for score in scores if score.key in seen)
    try:
        return summaries(cells, records, own, combine=combine_of, by_group=by_group)
    except (ValueError, KeyError) as error:
        raise DataError(
            f"records that do not fit their manifest ({folder}: {error}): expected one run. "
            "Restore the folder from a copy"
        ) from error


def _records(folder: Path, segments: Container[int]) -> Iterator[Record]:
    return (placed.record for placed in segmented(folder) if placed.segment in segments)


def _tapped(records: Iterator[Record], seen: set[Key], terms: TermsTally) -> Iterator[Record]:
    """The records; on their way past `seen` takes their keys and `terms` their counts."""
    for record in records:
        seen.add(record.key)
        terms.add(record)
        yield record


def _name(manifest: Manifest, folder: Path) -> str:
    return manifest.experiment.get("title") or folder.absolute().name


def _titles(manifest: Manifest) -> str:
    return "; ".join(dict.fromkeys(p["title"] for p in manifest.experiment.get("parts", ())))


def _machine(segment: Mapping[str, Any]) -> str:
    """What makes timings comparable: the hardware, and what was changed by force."""
    hardware = segment.get("provenance", {}).get("hardware")
    return json.dumps([hardware, segment.get("differences")], sort_keys=True)


def _lowest(provenance: Mapping[str, Any]) -> float | None:
    """The bound of the only target; of several, none can stand for all."""
    memory = provenance.get("memory") or {}
    sizes = list(memory.get("weights", {}).values())
    return 1e3 * sizes[0] / memory["bandwidth"] if len(sizes) == 1 else None

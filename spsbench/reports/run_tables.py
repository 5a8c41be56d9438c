"""Convert run folders to a report: manifest, records of each setting, summaries, tables."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from spsbench.errors import DataError, UsageError
from spsbench.metrics.compare import RunComparison, compare_runs, over_seeds, tally_run
from spsbench.metrics.parity import (
    Combine,
    Parity,
    Qualities,
    average,
    is_percent,
    parities,
    qualities,
)
from spsbench.metrics.summaries import Summary, summaries
from spsbench.metrics.text_checks import GreedyTexts, Repetition
from spsbench.plugins import plug_in
from spsbench.reports.audits import audit_section
from spsbench.reports.batch_figures import with_batch_figures
from spsbench.reports.columns import choose_columns, table_columns
from spsbench.reports.figure1 import figure1
from spsbench.reports.remarks import (
    basis,
    ceilings,
    count_unmarked,
    counter_notes,
    judged_notes,
    repetitions,
    run_findings,
    sameness,
    seed_lines,
)
from spsbench.reports.reporter import Report, Section, Table, Title
from spsbench.reports.text import json
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key, Record, Score
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import Manifest
from spsbench.store.progress import progress_in
from spsbench.store.provenance import digests
from spsbench.store.records import placed_records, records
from spsbench.store.run_folder import read_audits, record_logs, shard_name, unbegun
from spsbench.store.starts import Machine, Memory, machines, unlike
from spsbench.tasks.scores import read_scores


class RunData(NamedTuple):
    """The data of a run that all its tables share."""

    folder: Path
    manifest: Manifest
    cells: list[Cell]
    scores: list[Score]
    by_group: bool
    paper: bool  # show the paper's rows: requested by the run or by this report

    @classmethod
    def open(cls, folder: Path, by_group: bool = False, paper: bool = False) -> "RunData":
        """Read the files of a run other than its records; SpsError: no run, or a damaged run."""
        manifest = Manifest.load(folder)
        cells = list(manifest.configurations(folder).values())
        scores = list(read_scores(folder))
        paper = paper or bool(manifest.experiment.get("paper"))
        return cls(folder, manifest, cells, scores, by_group, paper)

    @property
    def name(self) -> str:
        """Return the title of the run, or the name of its folder where it has none."""
        return self.manifest.experiment.get("title") or self.folder.absolute().name

    def samples_of(self, cell: Cell) -> int | None:
        """Return how many samples a cell's task has; None where a part limits them, or unknown."""
        parts = self.manifest.experiment.get("parts", ())
        cell_parts = [part for part in parts if cell.id in part.get("cells", ())]
        if not cell_parts or any(part.get("limit") is not None for part in cell_parts):
            return None
        samples = self.manifest.experiment.get("samples", {})
        return len(samples.get(cell_parts[0].get("task"), ())) or None

    def machines(self) -> list[Machine]:
        """Return the kinds of machines that made records, each with its starts."""
        return machines(placed.start for placed in placed_records(self.folder))

    def records(self, *, timed: bool = True) -> Iterator[Record]:
        """Yield the records; without `timed` their times are flagged `unlike`."""
        for record in records(self.folder):
            yield record if timed else replace(record, flags=(*record.flags, "unlike"))

    def rows(self, records: Iterable[Record], seen: Container[Key]) -> list[Summary]:
        """Return summaries of the run's cells over `records`, with scores of the keys in `seen`.

        `seen` is asked after the last record, so that reading may fill it. With `by_group` rows of
        groups follow. Raises DataError for records of another run.
        """
        scores = (score for score in self.scores if score.key in seen)
        try:
            return summaries(
                self.cells, records, scores, combine=combine_of, by_group=self.by_group
            )
        except (ValueError, KeyError) as error:
            raise DataError(
                f"records that do not fit their manifest ({self.folder}: {error}): expected one "
                "run. Restore the folder from a copy"
            ) from error


def combine_of(cell: Cell) -> Combine:
    """Return the task's way from scores to one value a sample; the mean where it is unknown."""
    if cell.task is None:
        return average
    try:
        combine: Combine = plug_in("tasks", cell.task).combine
    except UsageError:  # the task's package is not installed
        return average
    return combine


def report_on(
    folders: Sequence[Path],
    *,
    by_group: bool = False,
    selected: Sequence[str] = (),
    paper: bool = False,
) -> Report:
    """Return the report of some runs, a table each; `selected` columns replace the default.

    `paper` adds the paper's rows to every run; else they appear in the runs that requested them.
    Stored audits become sections; `by_group` adds rows by group. Raises SpsError for no run, a
    damaged run, or an unknown column.
    """
    sources = [RunData.open(folder, by_group, paper) for folder in folders]
    tables = [_table(source) for source in sources]
    if selected:
        tables = [replace(table, columns=choose_columns(table.rows, selected)) for table in tables]
    names = dict.fromkeys(f"{table.title.run}{table.lack}" for table in tables)
    runs = zip(sources, tables, strict=True)
    sections = [section for source, table in runs for section in _sections(source, table)]
    return Report(", ".join(names), tables, sections=sections)


def run_table(folder: Path) -> Table:
    """Return the table of a run (see `_table`); SpsError: no run, or a damaged run."""
    return _table(RunData.open(folder))


def compare_with_run(
    folders: Sequence[Path], against: Path, margins: Mapping[str, float]
) -> RunComparison:
    """Compare runs with the run in `against`, paired by sample and repeat if both share any.

    `margins` maps the figures to compare to shares: a regression's mean is worse by more, and its
    interval excludes 0. Raises SpsError for no run, or a damaged run.
    """
    numbers: dict[str, int] = {}
    sides = []
    for side_folders in ([against], folders):
        sources = [RunData.open(folder) for folder in side_folders]
        rows = [row for source in sources for row in _table(source).whole]
        cells = {cell.id: cell for source in sources for cell in source.cells}
        records = (
            record
            for source in sources
            for record in source.records(timed=len(source.machines()) < 2)
        )
        sides.append((rows, tally_run([*cells.values()], records, numbers)))
    (before, tallies_before), (now, tallies_now) = sides
    return compare_runs(before, now, margins, (tallies_before, tallies_now))


def _sections(source: RunData, table: Table) -> Iterator[Section]:
    """Yield a section for each audit stored with a run, with its cell's number of records now."""
    for audit in read_audits(source.folder):
        cell = (audit.get("settings") or {}).get("id")
        records = sum(row.n + row.failures for row in table.whole if row.cell.id == cell)
        yield audit_section(audit, table.title.run, records or None)


def _table(source: RunData) -> Table:
    """Return the table of a run with digests, progress, remarks, and figures of batches if any.

    Records of unlike machines count without their times.
    """
    machines, seen = source.machines(), set[Key]()
    pooled = len(machines) < 2
    memory = machines[0].provenance.memory if len(machines) == 1 else None
    cells = {cell.id: cell for cell in source.cells}
    texts, greedy = defaultdict[str, Repetition](Repetition), GreedyTexts(source.cells)
    prompts = defaultdict[str, list[int]](list)  # tokens of each

    def read() -> Iterator[Record]:
        for record in source.records(timed=pooled):
            seen.add(record.key)
            greedy.add(record)
            texts[record.cell].add(record)
            prompts[record.cell].append(record.prompt_tokens)
            yield record

    rows = source.rows(read(), seen)
    whole = [row for row in rows if row.group is None]
    scores = [score for score in source.scores if score.key in seen]
    quality = _qualities(whole, scores)
    progress = progress_in(source.folder, source.manifest, cells, seen)
    scored, planned = Counter(s.cell for s in scores), {} if progress is None else progress.planned
    several = [
        row  # with several answers to each of all samples of its task
        for row in whole
        if row.samples == source.samples_of(row.cell)
        and row.samples < row.n == scored[row.cell.id] == planned.get(row.cell.id)
    ]
    answers = _qualities(several, scores, by_answer=True)
    paired = [
        (cell, parity._replace(available=source.samples_of(cell)))
        for cell, parity in parities([r.cell for r in whole], quality, greedy.identical(), answers)
    ]
    limits = ceilings(whole, memory, {cell: fmean(sizes) for cell, sizes in prompts.items()})
    notes = _notes(source, machines, whole, paired, limits)
    notes += sameness([row.cell for row in whole], greedy)
    notes += repetitions([row.cell for row in whole], texts) + count_unmarked(whole, scores)
    tasks = dict.fromkeys(part["title"] for part in source.manifest.experiment.get("parts", ()))
    identity = {
        "models": digests(source.manifest.fingerprint, source.cells),
        "prompts": source.manifest.experiment.get("prompts", {}),
    }
    if progress is not None:
        identity |= {"done": progress.done, "planned": progress.total}
    table = make_table(
        rows,
        Title(source.name, "; ".join(tasks), tuple(notes), timed=pooled),
        ceiling_ms=_bound_ms(memory),
        starts=[start for machine in machines for start in machine.starts],
        records=source.records,
        paper=source.paper,
        parities=paired,
        qualities=quality,
        greedy=greedy,
        identity=identity,
        progress=progress,
    )
    if progress is not None and progress.remark:
        table = replace(table, remarks=[progress.remark, *table.remarks])
    return with_batch_figures(table, table.whole)


def _qualities(
    rows: Sequence[Summary], scores: Iterable[Score], *, by_answer: bool = False
) -> dict[str, Qualities]:
    """Return cell id -> quality by sample or answer, per cent as shares; empty without scores."""
    by_cell: dict[str, list[Score]] = {row.cell.id: [] for row in rows}
    for score in scores:
        if score.cell in by_cell:
            scaled = {n: v / 100 if is_percent(n) else v for n, v in score.metrics.items()}
            answer = score.cell, f"{score.sample}/{score.repeat}", 0
            by_cell[score.cell].append(Score(*(answer if by_answer else score.key), scaled))
    return {row.cell.id: qualities(by_cell[row.cell.id], combine_of(row.cell)) for row in rows}


def _notes(
    source: RunData,
    machines: Sequence[Machine],
    whole: Sequence[Summary],
    paired: Sequence[tuple[Cell, Parity]],
    limits: Sequence[str],
) -> list[str]:
    """Return remarks: findings, counters, `limits`, scorings, shards that lack, unlike machines."""
    notes = run_findings(whole, paired, paper=source.paper)
    notes += counter_notes(whole, [start for machine in machines for start in machine.starts])
    notes += [*limits, *judged_notes(source.folder, source.cells)]
    if missing := unbegun(record_logs(source.folder)):
        notes.append(f"Shards not started yet: {', '.join(map(shard_name, missing))}.")
    if len(machines) > 1:
        notes.append(
            f"Generated on {len(machines)} unlike machines, so times are left out: "
            f"{'; '.join(unlike(machines))}. Report the shard of each machine for times."
        )
    return notes


def _bound_ms(memory: Memory | None) -> float | None:
    """Return the memory-bound token time of the only target in ms; None: several, or under load."""
    if memory is None or memory.loaded or len(memory.weights) != 1:
        return None
    return 1e3 * next(iter(memory.weights.values())) / memory.bandwidth


def conclude_run(folder: Path) -> Report:
    """Write `summary.json` of a finished run; return its report; SpsError: damaged, unwritable."""
    report = report_on([folder])
    replace_file(folder / "summary.json", json(report).encode("ascii"))
    return report


def make_table(
    rows: Sequence[Summary], title: Title, *, ceiling_ms: float | None = None, **about: Any
) -> Table:
    """Return a table of rows, one per cell and one per group, with columns, remarks and figure.

    `ceiling_ms` is the memory-bound minimum of an ArS token's time in ms; None: unknown. `about`
    are further fields of the table, such as `paper`, `starts` and `records`.
    """
    whole = [row for row in rows if row.group is None]
    seeds = over_seeds(whole)
    return Table(
        title=title,
        rows=rows,
        columns=table_columns(rows),
        remarks=[*basis(whole, title.timed), *title.notes, *seed_lines(seeds, whole)],
        seeds=seeds,
        figure=figure1(whole, str(title), ceiling_ms),
        **about,
    )

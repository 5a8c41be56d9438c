"""`sps report` and `sps merge`: tables of runs, computed from their records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import note
from spsbench.errors import UsageError
from spsbench.settings.options import Check, Option, one_of, parse
from spsbench.store.atomic import check_replaceable

SHARE = Check(lambda share: 0 < share < 1, "above 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Options of `sps report` for runs.

    Args:
        plot: Plot Figure 1 of the paper to PATH.png and PATH.svg, or to one of them.
        against: Compare with an earlier run; exits 1 on a regression.
        margin: Change that counts as a regression, as a fraction.
        by: Add a row for each category of the task.
        columns: Show only these columns, by heading or by name in summary.json:
            speed-up,alpha,prefill_ms.
        paper: Show the paper's results (Chinchilla) next to those of every run.
    """

    plot: Annotated[Path | None, Option(o.OUTPUT)] = None
    against: Annotated[Path | None, Option(o.OUTPUT)] = None
    margin: Annotated[float | None, Option(o.OUTPUT, SHARE, default_text="0.02-0.1")] = None
    by: Annotated[str | None, Option(o.OUTPUT, one_of("group"), metavar="group")] = None
    columns: Annotated[str | None, Option(o.OUTPUT, metavar="NAME,...")] = None
    paper: Annotated[bool, Option(o.OUTPUT)] = False


@o.take_options(Selected)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs; or files that vllm bench serve, AIPerf, GuideLLM or SpecForge "
            "saved.",
        ),
    ],
    format: o.ReportFormat = "table",
    out: Annotated[
        Path | None, o.out_option(help="Write the report to a file instead of stdout.")
    ] = None,
    **options: Any,
) -> None:
    """Show the results of runs, computed from their records."""
    (chosen,) = parse(options, Selected)
    plot, against, by = chosen.plot, chosen.against, chosen.by
    if chosen.margin is not None and against is None:
        raise UsageError("--margin without --against: expected both or none")
    form = o.report_format(format)
    if out is not None:
        check_replaceable(out)
    if any(path.is_file() for path in runs):
        show_results(runs, form, out, [f"--{name}" for name, value in options.items() if value])
        return
    from spsbench.cli.publish import check_plot, publish, save_plot, show_changes
    from spsbench.reports.run_tables import report_on

    if plot is not None:
        check_plot(plot)
    column_names = [name.strip() for name in (chosen.columns or "").split(",") if name.strip()]
    run_report = report_on(runs, by_group=by is not None, selected=column_names, paper=chosen.paper)
    if by is not None and not any(row.group for table in run_report.tables for row in table.rows):
        raise UsageError("--by group: expected a run whose prompts have groups. Leave it out")
    publish(run_report, form, out)
    if plot is not None:
        if len(run_report.tables) > 1:
            raise UsageError(
                f"--plot with {len(run_report.tables)} tables: expected one. Name one run"
            )
        save_plot(run_report.tables[0].figure, plot)
    if against is not None:
        raise typer.Exit(show_changes(runs, against, chosen.margin))


def show_results(
    paths: Sequence[Path], form: str, out: Path | None, run_options: list[str]
) -> None:
    """Write the figures of results that other benchmarks saved, as a table or JSON.

    `run_options` are flags given for runs alone. Raises UsageError for one, for another format, and
    for folders among `paths`; DataError for files that cannot be read.
    """
    if not all(path.is_file() for path in paths):
        raise UsageError("folders and files together: expected runs, or results of one kind")
    if run_options or form not in ("table", "json"):
        wrong = run_options[0] if run_options else f"--format {form}"
        raise UsageError(f"{wrong} with a file of results: expected a run. Leave it out")
    from spsbench.cli.publish import show
    from spsbench.reports.other_benchmarks import figure_tables, read_results
    from spsbench.reports.reporter import Section

    results = [result for path in paths for result in read_results(path)]
    section = Section(title="", status="open", line="", tables=[*figure_tables(results)])
    show([result._asdict() for result in results], form, section, out=out)


def merge_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, o.out_option(help="Folder to create.")],
    format: o.ReportFormat = "table",
) -> None:
    """Merge runs of one configuration, such as shards from several machines.

    A sample that several runs have is kept once, and must be equal in all.
    """
    form = o.report_format(format)

    from spsbench.cli.publish import publish
    from spsbench.reports.run_tables import conclude_run
    from spsbench.store.run import merge_runs
    from spsbench.store.run_folder import WHOLE
    from spsbench.tasks.program_log import merge_verdicts
    from spsbench.tasks.scores import task_scores, write_scores

    merge_runs(runs, out)
    scores = {s.key: s for run in runs for s in task_scores(run)}
    if scores:
        write_scores(out, WHOLE, scores.values())
    if left_out := merge_verdicts(runs, out):
        note(left_out)
    publish(conclude_run(out), form)

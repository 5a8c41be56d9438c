"""`sps report` and `sps merge`: tables of runs, from their records, at any time."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spsbench.cli import options as o
from spsbench.cli.notes import note, say
from spsbench.errors import UsageError

Format = Literal["table", "md", "csv", "json", "latex"]

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]


def report(
    runs: Runs,
    format: Annotated[Format, o.option(o.OUTPUT, "--format", "-f", help="Of the table.")] = "table",
    plot: Annotated[
        Path | None,
        o.option(o.OUTPUT, "--plot", help="Figure 1 as PATH.png and PATH.svg, or as one of them."),
    ] = None,
    against: Annotated[
        Path | None,
        o.option(o.OUTPUT, "--against", help="An earlier run; exits 1 on a regression."),
    ] = None,
    margin: Annotated[
        float | None,
        o.option(
            o.OUTPUT, "--margin", help="What counts as one, as a fraction.", show_default="0.02-0.1"
        ),
    ] = None,
    by: Annotated[
        Literal["group"] | None,
        o.option(o.OUTPUT, "--by", help="A row for each category of the task as well."),
    ] = None,
    debug: o.Debug = False,
) -> None:
    """Show what runs measured, computed anew from their records."""
    if margin is not None:
        if not 0 < margin < 1:
            raise UsageError(f"--margin is {margin}: expected above 0 and below 1")
        if against is None:
            raise UsageError("--margin without --against: expected both or none")

    from spsbench.cli.report.show import compared, print_report, save_plot
    from spsbench.reports.run_tables import tables

    made = [table for run in runs for table in tables(run, by_group=by is not None)]
    if by is not None and not any(row.group for table in made for row in table.rows):
        raise UsageError("--by group: expected a run whose prompts have groups. Leave it out")
    print_report(made, format)
    if plot is not None:
        if len(made) > 1:
            raise UsageError(f"--plot with {len(made)} tables: expected one. Name one run")
        for file in save_plot(made[0], plot):
            say(f"wrote {file}")
    if against is not None:
        rows = [row for table in made for row in table.whole]
        raise typer.Exit(compared(rows, against, margin))


def merge_runs(
    runs: Runs,
    out: Annotated[Path, o.option(o.OUTPUT, "--out", "-o", help="The folder to make.")],
    debug: o.Debug = False,
) -> None:
    """Unite runs of one configuration, for instance shards from several machines."""
    from spsbench.cli.report.show import print_report
    from spsbench.reports.conclude import conclude
    from spsbench.store.folder import WHOLE
    from spsbench.store.records import merge
    from spsbench.tasks.programs.log import merge as merge_verdicts
    from spsbench.tasks.scores import task_scores, write_scores

    merge(runs, out)
    scores = {s.key: s for run in runs for s in task_scores(run)}
    if scores:
        write_scores(out, WHOLE, scores.values())
    if left_out := merge_verdicts(runs, out):
        note(left_out)
    print_report(conclude(out), "table")

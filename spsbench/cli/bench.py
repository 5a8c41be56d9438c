"""`sps bench`: run a task under several methods, into a run that can always be resumed."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.cli.progress import deferred_progress
from spsbench.cli.terminal import note, say, with_flags
from spsbench.errors import Exit, UsageError
from spsbench.hardware.ranks import ranks
from spsbench.hardware.signals import graceful
from spsbench.registry import built_in
from spsbench.settings.experiment import BENCH, Experiment, ExperimentRequest, read_tables
from spsbench.settings.grid import Sweep
from spsbench.settings.options import RUN, WORK, options_of, parse
from spsbench.store.progress import progress_of
from spsbench.store.run_folder import check_writable


@o.take_options(*BENCH, without=("title",))
def bench(
    task: Annotated[
        str | None,
        typer.Argument(help=f"Task: {built_in('tasks')}; or a FILE of prompts; or give --config."),
    ] = None,
    config: Annotated[
        Path | None, o.option(WORK, "--config", help="Experiment file in TOML; flags override it.")
    ] = None,
    dry_run: Annotated[
        bool,
        o.option(
            RUN, "--dry-run", help="Show the configurations and an estimate of time, and exit."
        ),
    ] = False,
    chart: o.Chart = True,
    format: o.ReportFormat = "table",
    **options: Any,
) -> None:
    """Run TASK with auto-regressive and speculative sampling, and report speed and quality."""
    form = o.report_format(format)
    if dry_run and form != "table":
        raise UsageError(f"--format {form} with --dry-run: expected one of the two. Leave one out")
    if task is None and config is None:
        raise UsageError(f"no task: expected one of {built_in('tasks')}, or --config FILE")
    options |= {"task": task} if task else {}
    table, whole, place, access, workers = parse(options, *BENCH)
    tables = [table]
    if config is not None:
        whole, tables = read_experiment(config, options)
    if place.out is not None:
        check_writable(place.out)
    from spsbench.benchmark.bench import conduct, plan_experiment

    request = plan_experiment(tables, access, whole)
    for idle in dict.fromkeys(chain.from_iterable(table.idle() for table in tables)):
        note(idle)
    say(f"K: {', '.join(dict.fromkeys(str(cell.k) for cell in request.cells if cell.k)) or 'none'}")

    name = config.stem if config else request.parts[0].part.spec.short
    if dry_run:
        benchmark = conduct(name, place, access)
        for line in benchmark.estimate(benchmark.resolve(request)):
            print(with_flags(line))
        say("dry run: nothing was written; texts that end early shorten the time")
        return
    prepare = partial(conduct, name, place, access, workers=workers)
    raise typer.Exit(run_experiment(request, prepare, form=form, chart=chart))


def read_experiment(config: Path, flags: dict[str, Any]) -> tuple[Experiment, list[Sweep]]:
    """Return the options for all parts, and one table per part.

    A table is the file's top level, its part over it, and the flags over both, which the title of
    the experiment then names. A note says which plug-in files run. UsageError: invalid options, or
    a part without a task.
    """
    top, parts = read_tables(config)
    above = {name: top.pop(name) for name in [*top] if name in options_of(Experiment)}
    over = {name: value for name, value in flags.items() if name in options_of(Sweep)}
    tables = []
    for part in parts:
        (table,) = parse(top | part | over, Sweep, where=str(config))
        tables.append(replace(table, where=str(config)))
    if not all(table.task for table in tables):
        raise UsageError(f"{config}: no task: expected one in each part, or at the top")
    above |= {n: v for n, v in flags.items() if n in options_of(Experiment)}
    (whole,) = parse(above, Experiment, where=str(config))
    changed = ", ".join(f"{name}={value}" for name, value in over.items())
    if whole.title and changed:  # a title that names sizes must not outlive them
        whole = replace(whole, title=f"{whole.title} (but {changed})")
    for file in dict.fromkeys(file for table in tables for file in plugin_files(table)):
        note(f"{config} names {file}: its code is run")
    return whole, tables


def plugin_files(table: Sweep) -> list[str]:
    """Return what a table names as `FILE.py:CLASS`: its plug-ins, and its task with arguments."""
    named = [value for values in table.axes.values() for value in values]
    names = [value.name for value in named if getattr(value, "path", None)]
    return [*names, table.task] if table.task.partition(":")[0].endswith(".py") else names


def run_experiment(
    request: ExperimentRequest, prepare: Callable[..., Any], *, form: str, chart: bool
) -> int:
    """Run the requested experiment into its folder; show its report if it ended; return exit code.

    The code is the signal's if the run was stopped, that of scoring if this failed,
    `FAILED_SAMPLES` if samples did, else OK, as on ranks above 0. `prepare` makes the benchmark of
    `watch` and `stop`. Raises SpsError where models, data or a folder cannot be used.
    """
    with graceful() as interrupt, deferred_progress() as watch:
        benchmark = prepare(watch=watch, stop=lambda: interrupt.requested)
        outcome = benchmark.run(benchmark.resolve(request))
    if ranks().rank > 0:
        return Exit.OK
    if outcome.finished is None:
        if outcome.records:
            progress = progress_of(outcome.folder)
            say(f"stopped after {progress}. Continue with: {resume_command(outcome.folder)}")
        return interrupt.code
    from spsbench.cli.publish import publish

    publish(outcome.report, form, with_chart=chart)
    say(f"records, scores and summary.json are in {outcome.folder}")
    if outcome.failed:
        again = resume_command(outcome.folder)
        say(f"{outcome.failed} samples failed; try them again with: {again}")
    return outcome.scored or (Exit.FAILED_SAMPLES if outcome.failed else Exit.OK)


def resume_command(folder: Path | None = None) -> str:
    """Return this command line with `--resume`, and with `--out folder` where it has no `--out`."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    is_named = any(word in ("--out", "-o") or word.startswith("--out=") for word in words)
    words += [] if folder is None or is_named else ["--out", str(folder)]
    return shlex.join(["sps", *words, "--resume"])

"""`sps plan`: whether to speculate, with which drafter and K, and the speed-up to expect."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from spsbench.cli import options as o
from spsbench.cli.bench import resume_command
from spsbench.cli.plan.log import check_without_log, formulas, plan_from_log, refuse_others
from spsbench.cli.progress import deferred_progress
from spsbench.cli.terminal import say, with_flags
from spsbench.errors import Exit, UsageError
from spsbench.hardware.signals import graceful
from spsbench.registry import TRIAL, is_installed
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import PLAN as PLAN_OPTIONS
from spsbench.settings.commands import LogOptions
from spsbench.settings.options import METHOD, MODELS, SAMPLING, parse
from spsbench.settings.options import RUN as RUN_PANEL
from spsbench.spec import Spec

PLAN, RUN = "plan.json", "manifest.json"
PLACES = ("out", "resume", "overwrite")


@o.take_options(LogOptions, *PLAN_OPTIONS, without=("decoder", "shard", "score"))
def plan(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK|PLAN", help="Task with the prompts, or a finished plan's folder."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        o.option(o.OUTPUT, "--plot", hidden=True, help="Plot tau and speed-up by K: PATH.png/svg."),
    ] = None,
    temperature: Annotated[
        str | None,
        o.option(
            SAMPLING,
            "--temperature",
            help="Sampling temperature; 0 is greedy decoding. Several (0,0.7) have a plan each.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        o.option(
            MODELS,
            "--adapter",
            metavar="FOLDER",
            help="PEFT adapter, compared with the base; repeatable.",
        ),
    ] = None,
    trial: Annotated[
        int | None,
        o.option(METHOD, "--trial", min=1, hidden=True, help="Steps to train on adapters' texts."),
    ] = None,
    fit: Annotated[
        str | None,
        o.option(METHOD, "--fit", hidden=True, help="Fit a schedule on traces: disco:out=FILE."),
    ] = None,
    dry_run: Annotated[
        bool, o.option(RUN_PANEL, "--dry-run", help="Show what would be measured, and exit.")
    ] = False,
    chart: o.Chart = True,
    format: o.ReportFormat = "table",
    **options: Any,
) -> None:
    """Predict whether speculation pays on this machine, with which drafter and K; time the best."""
    form = o.report_format(format)
    temperatures = temperatures_of(temperature)
    if len(temperatures) == 1:
        options["temperature"] = temperatures[0]
    elif temperatures and (fit is not None or plot is not None):
        flag = "--fit" if fit is not None else "--plot"
        raise UsageError(f"{flag} with --temperature {temperature}: expected one temperature")
    if adapter and (len(temperatures) > 1 or options.get("trace")):
        flag = "--trace" if options.get("trace") else "several temperatures"
        raise UsageError(f"--adapter with {flag}: expected a plan of each adapter. Leave one out")
    if trial is not None and not (adapter and options.get("prompts") and is_installed(TRIAL)):
        raise UsageError("--trial: expected --adapter, --prompts FILE and the extension 'training'")
    others: dict[str, Any] = {"adapter": adapter, "trial": trial, "fit": fit, "dry_run": dry_run}
    if options.get("log") and options.get("alpha") is not None:
        raise UsageError("--log with --alpha: expected one of the two. Leave one out")
    if options.get("log"):
        if len(temperatures) > 1:
            raise UsageError("--log with several temperatures: expected one. Name one")
        raise typer.Exit(plan_from_log(what, {**options, **others}, form=form, plot=plot))
    others |= {"plot": plot, "temperature": temperature}
    if options.get("alpha") is not None:
        formulas(what, {**options, **others}, form=form)
        return
    check_without_log(options)
    fitting = None if fit is None else OF_CELL["schedule"].convert(fit)
    how: dict[str, Any] = {"form": form, "chart": chart, "plot": plot, "fit": fitting}

    if fitting is not None and options.get("trace") and options.get("costs") is None:
        refuse_others({**options, **others, "TASK": what}, ("trace", "fit"), "--fit on a --trace")
        raise typer.Exit(fit_on(fitting, [Path(path) for path in options["trace"]]))

    if dry_run:
        for values in plan_options(options, temperatures, adapter or ()):
            show_phases(what, values, form)
        say("dry run: nothing was written; texts that end early shorten the time")
        return
    if what is not None and (Path(what) / PLAN).is_file():
        options |= {"temperature": temperature} if len(temperatures) > 1 else {}  # are refused
        options |= {"adapter": adapter} if adapter else {}
        places = [name for name in PLACES if options.get(name) not in (None, False)]
        if not places:
            raise typer.Exit(run_plans(None, Path(what), [options], **how))
        if places != ["resume"]:
            raise UsageError(
                f"--{places[0]} with the plan {what}: expected the plan alone, which is shown again"
            )
    if what is not None and (Path(what) / RUN).is_file():
        run = shlex.quote(what)
        raise UsageError(
            f"{what} is a run: expected a task, or a plan. Plan from its texts with --log {run}, "
            f"from its traces with --trace {run} --costs FILE"
        )
    raise typer.Exit(
        run_plans(what, None, plan_options(options, temperatures, adapter or ()), trial, **how)
    )


def temperatures_of(text: str | None) -> list[float]:
    """Return the temperatures of `0,0.7`, each once; [] for None; UsageError: invalid numbers."""
    try:
        values = [float(word) for word in text.split(",")] if text is not None else []
    except ValueError as error:
        raise UsageError(f"--temperature {text}: expected numbers like 0,0.7") from error
    return list(dict.fromkeys(OF_CELL["temperature"].convert(value) for value in values))


def plan_options(
    options: Mapping[str, Any], temperatures: Sequence[float], adapters: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the options of each plan: one, as they are, or several that differ.

    Several differ by adapter: `base`, without one, is first, and compared with each (`1-NAME`); or
    else by temperature (`T0.7`). Each then has the folder of this name in `--out`, if it is given.
    """
    name, values = "temperature", dict[str, Any]((f"T{value:g}", value) for value in temperatures)
    if adapters:
        from spsbench.checkpoints.adapters import read_adapters

        named = [text for text in adapters if text != "none"]
        for text in named:  # before the base is planned
            read_adapters(text, allow_pickle=bool(options.get("allow_pickle")))
        folders = {f"{number}-{Path(text).name}": text for number, text in enumerate(named, 1)}
        name, values = "adapter", {"base": "none", **folders}
    if len(values) < 2:
        return [dict(options)]
    out = options.get("out")
    places = {folder: {} if out is None else {"out": Path(out) / folder} for folder in values}
    return [{**options, **places[folder], name: value} for folder, value in values.items()]


def run_plans(
    task: str | None,
    folder: Path | None,
    option_sets: Sequence[Mapping[str, Any]],
    trial: int | None = None,
    *,
    form: str,
    chart: bool,
    plot: Path | None = None,
    fit: Spec | None = None,
) -> int:
    """Make a plan of each set of options, or open that in `folder`; return the exit code.

    One report of all, a plot and the folders are shown; a stopped plan shows none and gives the
    signal's code. With `fit` a schedule is fitted on the first plan's traces, or those of its
    options. Plans of adapters share the base's costs, others the models. `trial`: steps to train a
    drafter under each adapter; None: no training.
    """
    from spsbench.cli.publish import publish, save_plot
    from spsbench.planning.fit import check_fit
    from spsbench.planning.plan import open_plan, shared_models
    from spsbench.planning.plan import plan as make_plan

    if fit is not None:
        check_fit(fit)
    several = len(option_sets) > 1
    plans: list[Any] = []
    if folder is not None:
        plans = [open_plan(folder, **options) for options in option_sets]
    else:
        shares = several and "adapter" not in option_sets[0]  # the models of each are its own
        pair = shared_models(parse(option_sets[0], *PLAN_OPTIONS)[-1]) if shares else None
        command = resume_command()
        farewell = f"stopped. Continue with: {command}"
        with graceful(lambda: farewell) as interrupt, deferred_progress() as watch:
            callbacks: dict[str, Any] = {"watch": watch, "fit": fit, "command": command}
            callbacks |= {"stop": lambda: interrupt.requested, "pair": pair}
            for options in option_sets:
                if plans and "adapter" in options and options.get("out"):
                    share_costs(plans[0].folder, Path(options["out"]))
                if (plan := make_plan(task, **callbacks, **options)) is None:
                    say(farewell)
                    return interrupt.code
                plans.append(plan)
    reports = [plan.report for plan in plans]
    if several and "adapter" in option_sets[0]:
        pairs = zip(plans[1:], option_sets[1:], strict=True) if trial else ()
        trials = {p.target.adapter: plans[0].trial(p, trial, options) for p, options in pairs}
        reports = [plans[0].with_adapters(plans[1:], trials)]
    elif several:
        temperatures = [options["temperature"] for options in option_sets]
        reports = list(map(at_temperature, reports, temperatures))
    report = replace(
        reports[0],
        tables=[table for report in reports for table in report.tables],
        sections=[section for report in reports for section in report.sections],
    )
    publish(report, form, with_chart=chart)
    if plot is not None:
        save_plot(report.tables[0].figure, plot)
    for plan in plans:
        if plan.folder is not None:
            say(f"texts, traces, costs and real rounds are in {plan.folder}")
    if fit is not None:
        paths = option_sets[0].get("trace") or ()
        return fit_on(fit, [plans[0].folder] if plans[0].folder else list(map(Path, paths)))
    return Exit.OK


def share_costs(base: Path, folder: Path) -> None:
    """Copy `costs.json` of the base's plan to an adapter's, if it has none; costs do not differ."""
    costs = folder / "costs.json"
    if not costs.exists():
        folder.mkdir(parents=True, exist_ok=True)
        costs.write_bytes((base / costs.name).read_bytes())


def at_temperature(report: Any, temperature: float) -> Any:
    """Return the report of a plan with `, T 0.7` behind the titles of its tables and sections."""
    label = f"T {temperature:g}"
    tables = [
        replace(table, title=replace(table.title, task=f"{table.title.task}, {label}"))
        for table in report.tables
    ]
    sections = [replace(part, title=f"{part.title}, {label}") for part in report.sections]
    return replace(report, tables=tables, sections=sections)


def show_phases(task: str | None, options: Mapping[str, Any], form: str) -> None:
    """Print what a plan would measure; UsageError: `form` is no table, `task` is a plan or run."""
    from spsbench.planning.plan import plan as make_plan

    if form != "table":
        raise UsageError(f"--format {form} with --dry-run: expected one of the two. Leave one out")
    if task is not None and any((Path(task) / name).is_file() for name in (PLAN, RUN)):
        raise UsageError(
            f"--dry-run with {task}: expected a task. Name one, or leave --dry-run out"
        )
    for line in cast("list[str]", make_plan(task, dry_run=True, **options)):
        print(with_flags(line))


def fit_on(fit: Spec, traced: Sequence[Path]) -> int:
    """Fit a schedule on the traces in folders, print its quality and use on stderr; return OK."""
    from spsbench.planning.fit import fit_schedule

    quality = fit_schedule(fit, traced)
    out = dict(fit.args)["out"]
    say(f"{fit.name}: {quality}. Use it with --schedule {fit.name}:path={out}")
    return Exit.OK

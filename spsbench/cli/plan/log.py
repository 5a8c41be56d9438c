"""`sps plan --log` and `--alpha`: plans from logs alone, and the formulas without a log."""

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from spsbench.cli.progress import deferred_progress
from spsbench.cli.terminal import to_json_line, with_flags, write
from spsbench.errors import UsageError
from spsbench.hardware.signals import graceful
from spsbench.settings.commands import LogOptions, Planning
from spsbench.settings.options import flag_of, is_given, options_of, parse
from spsbench.settings.records import SCHEMA

OF_FORMULAS = ("alpha", "k", "draft_ratio", "row_ratio")


def plan_from_log(
    what: str | None, options: Mapping[str, Any], *, form: str, plot: Path | None
) -> int:
    """Answer from the logs in `options`; print it in `form`, save `plot`; return the exit code.

    A signal, whose code is returned, ends the reading: the answer is of the requests so far. Raises
    UsageError for `what`, a task beside the logs.
    """
    if what is not None:
        raise UsageError(f"--log with {shlex.quote(what)}: expected one of the two. Leave one out")
    from spsbench.cli.publish import format_tables, publish, save_plot
    from spsbench.planning.logs.plan_log import plan_log
    from spsbench.reports.reporter import Report

    values = {name: value for name, value in options.items() if name not in ("log", "alpha")}
    farewell = "stopped; the answer is of the requests so far"
    with graceful(lambda: farewell) as interrupt, deferred_progress() as watch:
        answer = plan_log(
            list(options["log"]), watch=watch, stop=lambda: interrupt.requested, **values
        )
    if form == "json":
        write(to_json_line({"schema": SCHEMA, **answer.values()}))
    elif form == "table":
        warnings = [f"warning: {line}\n" for line in answer.warnings()]
        lines = [f"{with_flags(answer.sentence())}\n", *(f"{line}\n" for line in answer.pasted())]
        write("".join([*warnings, format_tables(answer.tables()), *warnings, *lines]))
    else:
        publish(Report("Plan from logs", [], sections=(answer.section(),)), form)
    if plot is not None:
        save_plot(answer.figure(), plot)
    return interrupt.code if interrupt.requested else 0


def check_without_log(options: Mapping[str, Any]) -> None:
    """Raise UsageError for given options that only plans from logs or formulas have."""
    for name in options_of(LogOptions):
        if is_given(options.get(name)):
            others = "--log or --alpha" if name in OF_FORMULAS else "--log"
            raise UsageError(
                f"{flag_of(name)} without {others}: expected both or none. Leave it out"
            )


def refuse_others(options: Mapping[str, Any], taken: Collection[str], mode: str) -> None:
    """Raise UsageError for a given option that is none of `taken`, which `mode` alone reads."""
    for name, value in options.items():
        if name not in taken and is_given(value):
            flag, flags = name if name.isupper() else flag_of(name), ", ".join(map(flag_of, taken))
            raise UsageError(f"{flag} with {mode}: expected {flags} alone. Leave it out")


def formulas(what: str | None, options: Mapping[str, Any], *, form: str) -> None:
    """Print E[tokens], speed-up, best K and operations by acceptance rate, as table or JSON.

    Raises UsageError for other formats, and for options that formulas do not have.
    """
    from spsbench.cli.publish import format_tables
    from spsbench.planning.logs.assumptions import formula_tables, formula_values, rates_of

    refuse_others({**options, "TASK": what}, OF_FORMULAS, "--alpha")
    of_formulas = {name: options.get(name) for name in OF_FORMULAS}
    formula, planning = parse(of_formulas, LogOptions, Planning)
    ratios = formula.draft_ratio or 0.0, formula.row_ratio or 0.0
    values = formula_values(rates_of(formula.alpha or ""), planning.k, *ratios)
    if form == "json":
        write(to_json_line({"schema": SCHEMA, **values}))
    elif form == "table":
        write(format_tables(formula_tables(values)))
    else:
        raise UsageError(f"--format {form} with --alpha: expected table or json. Change it")

"""`sps verify`: audit whether speculative sampling keeps the target's distribution."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.cli.terminal import note, one_line, say
from spsbench.errors import Exit, UsageError
from spsbench.hardware.memory import importing_libraries
from spsbench.hardware.signals import at_once
from spsbench.registry import VECTORS, attribute_at, is_installed
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import AuditOptions, HeadSearch, RunAuditOptions
from spsbench.settings.constraint import KINDS as CONSTRAINTS
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import METHOD, parse
from spsbench.settings.records import SCHEMA

# No audit of texts without meaning, or under masks, whose distribution the tests enumerate.
EXCLUDED = ("stop", *CONSTRAINTS)
CODES = {"held": Exit.OK, "bias found": Exit.BIAS}  # any other verdict: not valid as an audit

WIRED = {"right": Exit.OK, "not distinguished": Exit.NOT_VALID}  # any other: Exit.BIAS

verify = typer.Typer(
    no_args_is_help=True,
    help="Verify that the output distribution is the target's. Exits 0 held, 7 bias "
    "found, 6 not valid.",
)


def _only(name: str) -> Any:
    return o.option(METHOD, f"--{name}", help=f"Check only this {name}; repeatable.")


@verify.command("rules")
def rules(
    verifier: Annotated[list[str] | None, _only("verifier")] = None,
    drafter: Annotated[list[str] | None, _only("drafter")] = None,
    schedule: Annotated[list[str] | None, _only("schedule")] = None,
    deep: Annotated[
        bool,
        o.option(
            METHOD, "--deep", help="Enumerate larger trees and longer rounds, for minutes per rule."
        ),
    ] = False,
    vectors: Annotated[
        Path | None,
        o.option(
            o.OUTPUT,
            "--vectors",
            help="Check nothing: write test vectors of exact rules, .json or plain lines in .txt.",
        ),
    ] = None,
    format: o.TableFormat = "table",
) -> None:
    """Check every verifier with every kind of draft by enumeration over tiny vocabularies."""
    named = {"verifier": verifier, "schedule": schedule, "drafter": drafter}
    specs = [[OF_CELL[kind].convert(name) for name in names or ()] for kind, names in named.items()]

    if vectors is not None:
        if drafter or schedule or deep:
            raise UsageError(
                "--vectors with --drafter, --schedule or --deep: expected none of them"
            )
        if not is_installed(VECTORS):
            raise UsageError("--vectors: expected the extension 'conformance', which is not there")
        say(f"{attribute_at(VECTORS)(vectors, specs[0])} vectors written to {vectors}")
        return

    with importing_libraries():
        from spsbench.cli.rules import enumerate_rules

    raise typer.Exit(enumerate_rules(*specs, deep=deep, format=format))


@verify.command("run")
@o.take_options(RunAuditOptions, Access)
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    format: o.AuditFormat = "table",
    out: o.PageFile = None,
    keep: Annotated[
        bool,
        o.option(
            o.OUTPUT, "--keep", help="Keep the result in the run's folder, where reports find it."
        ),
    ] = False,
    plot: o.Plot = None,
    **options: Any,
) -> None:
    """Audit the records of a run: score every token again with the target, and test for bias."""
    audit, access = parse(options, RunAuditOptions, Access)
    o.check_page(format, out)

    from spsbench.models.prepare import check_environment

    check_environment()

    with importing_libraries():
        from spsbench.audit.verify import verify_run
        from spsbench.cli.progress import alive

    with alive(f"auditing {folder}"):
        audits = list(verify_run(folder, access, audit))
    raise typer.Exit(publish_audits(audits, format, out, plot, folder=folder, keep=keep))


@verify.command("pair")
@o.take_options(AuditOptions, Grid, Access, without=EXCLUDED)
def pair(
    format: o.AuditFormat = "table", out: o.PageFile = None, plot: o.Plot = None, **options: Any
) -> None:
    """Generate with a pair of models until a bias is found, or one of size --bias is ruled out.

    At temperature 0 each text is identical to the target's, a rounding tie, or a bug.
    """
    o.check_page(format, out)
    if options.get("k") == 0:
        raise UsageError("--k 0: expected K of 1 or more, to compare with auto-regressive sampling")
    audit, grid, access = parse(options, AuditOptions, Grid, Access)
    with at_once():
        from spsbench.models.prepare import facts_of
        from spsbench.pair.load import open_pair

    request = grid.one(facts_of(access))
    if request.random:
        raise UsageError("--weights random: expected trained weights, to write a meaningful text")
    if request.max_new_tokens < 1:
        raise UsageError("--max-new-tokens is 0: expected 1 or more")
    if request.temperature == 0 and plot is not None:
        raise UsageError("--plot at temperature 0: expected it above 0. Leave it out")
    for idle in grid.idle():
        note(idle)
    bets = [f"`{name}`" for name in ("bias", "level") if name in options]
    if request.temperature == 0 and bets:
        note(f"{', '.join(bets)} without draws: no effect")
    with at_once():
        opened = open_pair(grid, access, request=request)

    from spsbench.audit.verify import verify_pair
    from spsbench.cli.progress import alive

    with alive("auditing the pair"):
        verified = verify_pair(opened, audit)
    raise typer.Exit(publish_audits([verified], format, out, plot))


OF_HEAD = {"target", "draft", "drafter", "adapter", "device", "dtype", "revision", "draft_revision"}


@verify.command("head")
@o.take_options(HeadSearch, Grid, Access, without={*OF_CELL} - OF_HEAD)
def head(format: o.TableFormat = "table", **options: Any) -> None:
    """Find the wiring that a head was trained for, by its acceptance along texts.

    Exits 0 right, 7 wired otherwise or dead, 6 not distinguished.
    """
    plan, grid, access = parse({**options, "engine": "eager"}, HeadSearch, Grid, Access)
    with at_once():
        from spsbench.pair.load import open_pair

        opened = open_pair(grid, access)

    from spsbench.audit.wiring import verify_head
    from spsbench.cli.progress import alive
    from spsbench.cli.publish import show
    from spsbench.reports.audits import wiring_section

    with alive("trying wirings"):
        finding = verify_head(opened, plan)
    code = WIRED.get(finding.verdict, Exit.BIAS)
    values = {"schema": SCHEMA, "exit": int(code), **finding.to_json()}
    show(values, format, wiring_section(values))
    raise typer.Exit(code)


def publish_audits(
    audited: Sequence[Any],
    format: str,
    out: Path | None,
    plot: Path | None,
    *,
    folder: Path | None = None,
    keep: bool = False,
) -> int:
    """Print, plot and store the results; return the exit code of the worst.

    With `keep` they are written into the run in `folder`, whose page an html report then is; each
    audit's line goes to stderr. BIAS is worse than NOT_VALID, and that than OK. Raises UsageError
    for a plot of greedy audits.
    """
    from spsbench.cli.publish import publish, save_plot, show
    from spsbench.reports.audits import audit_section
    from spsbench.store.run_folder import write_audits

    audits = [values(audit) for audit in audited]
    codes = [CODES.get(audit["verdict"], Exit.NOT_VALID) for audit in audits]
    code = next((c for c in (Exit.BIAS, Exit.NOT_VALID) if c in codes), Exit.OK)
    if plot is not None:
        save_plot(e_process_plot(audits), plot)
    if keep and folder is not None:
        say(f"kept in {write_audits(folder, audits)}: reports of the run show it")
    if format == "html":
        publish(report_of(audits, folder), "html", out)
    else:
        show(
            {"schema": SCHEMA, "exit": int(code), "audits": audits},
            format,
            *map(audit_section, audits),
        )
    for audit in audits:
        say(f"{audit['name']}: {audit['line']}")
    return code


def report_of(audits: Sequence[Mapping[str, Any]], folder: Path | None) -> Any:
    """Return a `Report` of audits, with the table of the run in `folder`; SpsError: damaged."""
    from spsbench.reports.audits import audit_section
    from spsbench.reports.reporter import Report
    from spsbench.reports.run_tables import report_on

    if folder is None:
        return Report("Audit of a pair", [], sections=[audit_section(audit) for audit in audits])
    report = report_on([folder])
    title = report.tables[0].title.run
    return replace(report, sections=[audit_section(audit, title) for audit in audits])


def values(audited: Any) -> dict[str, Any]:
    """Return by name an audit's name, settings, result, line and advice, for JSON."""
    advice = {"advice": audited.advice} if audited.advice else {}
    named = {"name": audited.name, "settings": audited.settings}
    return {**named, **audited.result.to_json(), "line": audited.line, **advice}


def e_process_plot(audits: Sequence[Mapping[str, Any]]) -> Any:
    """Return a `Figure` of the e-process over tokens, a curve a method; UsageError: all greedy."""
    from spsbench.reports.audits import e_process_figure

    sampled = [audit for audit in audits if "alarm_log10" in audit]
    if not sampled:
        raise UsageError("--plot of a greedy audit: expected a temperature above 0. Leave it out")
    several = len(audits) > 1
    curves = {
        one_line(f"{audit['name']}, {m['name']}" if several else m["name"]): m["curve"]
        for audit in sampled
        for m in (audit["sps"], audit["controls"]["ars"])
    }
    heading = "" if several else one_line(audits[0]["line"])
    return e_process_figure(curves, max(audit["alarm_log10"] for audit in sampled), heading)

"""`sps verify`: audit whether speculative sampling keeps the target's distribution."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.errors import UsageError
from spsbench.hardware.memory import importing_libraries
from spsbench.hardware.signals import at_once
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import OF_AUDIT, OF_REPLAY
from spsbench.settings.constraint import KINDS as CONSTRAINTS
from spsbench.settings.execution import OF_ACCESS, access_of
from spsbench.settings.grid import Grid
from spsbench.settings.options import METHOD, convert_options, take_options

# No audit of texts without meaning, or under masks, whose law the tests enumerate.
EXCLUDED = ("stop", "random_weights", *CONSTRAINTS)
OF_PAIR = {name: setting for name, setting in OF_CELL.items() if name not in EXCLUDED}

verify = typer.Typer(
    no_args_is_help=True,
    help="Verify that the output distribution is the target's. Exits 0 held, 7 bias "
    "found, 6 not valid.",
)


@verify.command("rules")
def rules(
    verifier: Annotated[
        list[str] | None,
        o.option(METHOD, "--verifier", help="Check only this verifier; repeatable."),
    ] = None,
    drafter: Annotated[
        list[str] | None, o.option(METHOD, "--drafter", help="Check only this drafter; repeatable.")
    ] = None,
    schedule: Annotated[
        list[str] | None,
        o.option(METHOD, "--schedule", help="Check only this schedule; repeatable."),
    ] = None,
    deep: Annotated[
        bool,
        o.option(
            METHOD, "--deep", help="Enumerate larger trees and longer rounds, for minutes per rule."
        ),
    ] = False,
    format: o.TableFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check every verifier with every kind of draft by enumeration over tiny vocabularies."""
    specs = [OF_CELL["verifier"].convert(name) for name in verifier or ()]
    drafts = [OF_CELL["drafter"].convert(name) for name in drafter or ()]
    only = [OF_CELL["schedule"].convert(name) for name in schedule or ()]

    with importing_libraries():
        from spsbench.cli.verify.rules import enumerate_rules

    as_json = o.wants_json(format, json)
    raise typer.Exit(enumerate_rules(specs, only, drafts, deep=deep, json=as_json))


@verify.command("run")
@o.takes(OF_REPLAY.values(), OF_ACCESS.values())
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    format: o.AuditFormat = "table",
    json: o.Json = False,
    out: o.PageFile = None,
    keep: Annotated[
        bool,
        o.option(
            o.OUTPUT, "--keep", help="Keep the result in the run's folder, where reports find it."
        ),
    ] = False,
    plot: o.Plot = None,
    debug: o.Debug = False,
    **options: Any,
) -> None:
    """Audit the records of a run: score every token again with the target, and test for bias."""
    access, audit = access_of(options)
    convert_options(OF_REPLAY, audit)
    form = o.page_format(format, json, out)

    from spsbench.models.prepare import check_environment, check_packages

    check_environment()
    check_packages()

    with importing_libraries():
        from spsbench.audit.verify import verify_run
        from spsbench.cli.output.progress import alive
        from spsbench.cli.verify.output import publish

    with alive(f"auditing {folder}"):
        audits = list(verify_run(folder, access, **audit))
    raise typer.Exit(publish(audits, form, out, plot, run=folder, keep=keep))


@verify.command("pair")
@o.takes(OF_PAIR.values(), OF_AUDIT.values(), OF_ACCESS.values())
def pair(
    format: o.AuditFormat = "table",
    json: o.Json = False,
    out: o.PageFile = None,
    plot: o.Plot = None,
    debug: o.Debug = False,
    **options: Any,
) -> None:
    """Generate with a pair of models until a bias is found, or one of size --bias is ruled out.

    At temperature 0 each text is identical to the target's, a rounding tie, or a bug.
    """
    form = o.page_format(format, json, out)
    if options.get("k") == 0:
        raise UsageError("--k 0: expected K of 1 or more, to compare with auto-regressive sampling")
    audit = take_options(options, OF_AUDIT)
    convert_options(OF_AUDIT, audit)
    access, of_cell = access_of(options)
    grid = Grid.of(of_cell)
    cell = grid.one()
    if cell.random:
        raise UsageError("--weights random: expected trained weights, to write a meaningful text")
    if cell.max_new_tokens < 1:
        raise UsageError("--max-new-tokens is 0: expected 1 or more")
    if cell.temperature == 0 and plot is not None:
        raise UsageError("--plot at temperature 0: expected it above 0. Leave it out")
    with at_once():
        from spsbench.pair.load import open_pair

        pair = open_pair(grid, access)

    from spsbench.cli.output.progress import alive
    from spsbench.cli.verify.output import publish

    with alive("auditing the pair"):
        verified = pair.verify(**audit)
    raise typer.Exit(publish([verified], form, out, plot))

"""`sps verify`: whether the text of speculative sampling is distributed as the target's own."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spsbench.cli import options as o
from spsbench.config import check, parse

AUDIT = "The audit"

Format = Literal["table", "json"]
Form = Annotated[Format, o.option(o.OUTPUT, "--format", "-f", help="Of the report on stdout.")]

verify = typer.Typer(
    no_args_is_help=True,
    help="Prove that nothing was lost, or find the bug. Exits 0 held, 7 bias found, 6 not valid.",
)


@verify.command("rules")
def rules(
    verifier: Annotated[
        list[str] | None, o.option(o.METHOD, "--verifier", help="Only these; repeatable.")
    ] = None,
    format: Form = "table",
    debug: o.Debug = False,
) -> None:
    """Enumerate every verifier with every kind of draft: the exact law over tiny vocabularies."""
    specs = [parse("--verifier", name) for name in verifier or ()]

    from spsbench.cli.enumerating import enumerate_rules

    raise typer.Exit(enumerate_rules(specs, format))


Level = Annotated[
    float, o.option(AUDIT, "--level", help="Chance of a false alarm, of the whole audit.")
]
Plot = Annotated[
    Path | None,
    o.option(o.OUTPUT, "--plot", help="The e-values as PATH.png and PATH.svg, or as one of them."),
]


@verify.command("run")
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    bias: Annotated[
        float | None,
        o.option(
            AUDIT, "--bias", help="The bias to be caught.", show_default="what the length allows"
        ),
    ] = None,
    level: Level = 1e-3,
    max_tokens: Annotated[
        int | None, o.option(AUDIT, "--max-tokens", help="Of each method.", show_default="all")
    ] = None,
    offline: o.Offline = False,
    threads: o.Threads = None,
    format: Form = "table",
    plot: Plot = None,
    debug: o.Debug = False,
) -> None:
    """Audit the records of a run: every emitted token against the target's law, scored anew."""
    check_audit(bias, level, max_tokens)

    from spsbench.cli.machine import check_environment, check_packages

    check_environment()
    check_packages()

    from spsbench.cli.verifying import verify_run

    code = verify_run(
        folder,
        level=level,
        bias=bias,
        max_tokens=max_tokens,
        offline=offline,
        threads=threads,
        form=format,
        plot=plot,
    )
    raise typer.Exit(code)


def check_audit(bias: float | None, level: float, max_tokens: int | None) -> None:
    """The ranges of what audits share."""
    check(bias is None or 0 < bias < 1, "--bias", bias, "above 0 and below 1")
    check(0 < level <= 0.1, "--level", level, "above 0, at most 0.1")
    check(max_tokens is None or max_tokens > 0, "--max-tokens", max_tokens, "1 or more")

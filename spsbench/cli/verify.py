"""`sps verify`: whether the text of speculative sampling is distributed as the target's own."""

from typing import Annotated, Literal

import typer

from spsbench.cli import options as o
from spsbench.config import parse

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

"""`sps`: the application; a command of the registry is imported when it is named."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from spsbench.cli.output.flags import learn_flags
from spsbench.cli.output.terminal import say, show_what_can_be_shown
from spsbench.cli.process.failures import exit_code
from spsbench.cli.process.ranks import exit_rank, run_silently
from spsbench.hardware.ranks import ranks
from spsbench.messages import lines_to
from spsbench.registry import command as registered
from spsbench.registry import commands
from spsbench.version import __version__


class Commands(TyperGroup):
    """Commands by their summaries; what is invoked, or asked for its own help, is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in commands():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the imported command and the arguments left for it."""
        name, command, left = super().resolve_command(ctx, args)
        return name, command and import_command(str(name)), left


def import_command(name: str) -> Any:
    """Import the command `name`: a function with one line in the registry, or a group of them."""
    function = registered(name)
    if isinstance(function, typer.Typer):
        imported: Any = typer.main.get_group(function)
    else:
        application = typer.Typer(add_completion=False)
        application.command(context_settings=getattr(function, "context_settings", None))(function)
        imported = typer.main.get_command(application)
    imported.name = name
    learn_flags(imported)
    return imported


app = typer.Typer(
    name="sps",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    """Print the version and end."""
    if requested:
        print(f"sps {__version__}")
        raise typer.Exit


@app.callback()
def sps(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=show_version)
    ] = False,
) -> None:
    """Speculative sampling: generate text, measure the speed-up, verify the distribution."""


def command() -> object:
    """Run the command that the arguments name."""
    with lines_to(say if ranks().rank == 0 else None):
        return app(standalone_mode=False)


def main() -> None:
    """Run the command line and exit."""
    show_what_can_be_shown()
    if ranks().rank > 0:
        exit_rank(run_silently(command))
    sys.exit(exit_code(command))

"""`sps`: the application; a command of the registry is imported when it is named."""

import os
import re
import signal
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from spsbench.cli.failures import debugging, exit_code
from spsbench.cli.terminal import say, show_what_can_be_shown
from spsbench.errors import Exit
from spsbench.hardware.ranks import ranks
from spsbench.messages import lines_to
from spsbench.registry import COMMANDS, attribute_at, commands
from spsbench.version import __version__

DEFAULT = re.compile(r"  \[default: \(?(.*?)\)?\]$")
IN_STEP = ("generate", "bench", "verify")  # commands whose models ranks of torchrun may share


def show_all(context: typer.Context, requested: bool) -> None:
    """Print the help with hidden options too and end with typer.Exit, if `requested`."""
    if requested:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit


def declare_flags(
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all", help="Show all options and exit.", is_eager=True, callback=show_all
        ),
    ] = False,
) -> None:
    """Declare the options that a `Command` adds."""


class Command(TyperCommand):
    """A command with `--json` for `--format json`, with `--debug` and with help in plain text."""

    def __init__(self, *args: Any, params: list[Any], **attributes: Any) -> None:
        application = typer.Typer(add_completion=False)
        application.command()(declare_flags)
        json, debug, help_all = typer.main.get_command(application).params
        if any(parameter.name == "format" for parameter in params):
            params = [*params, json]
        params = [*params, debug]
        if any(parameter.hidden for parameter in params):
            params.append(help_all)
        super().__init__(*args, params=params, **attributes | {"rich_markup_mode": None})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments: --json overrides `format`; the function gets no other added flag."""
        left = super().parse_args(ctx, args)
        if ctx.params.pop("json", False):
            ctx.params["format"] = "json"
        for name in ("debug", "help_all"):
            ctx.params.pop(name, None)
        return left

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the options by group: Arguments, their panels, or Output."""
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                name, text = record
                record = name, DEFAULT.sub(r" [\1]", text)
                argument = parameter.param_type_name == "argument"
                group = getattr(parameter, "rich_help_panel", None) or "Output"
                groups.setdefault("Arguments" if argument else group, []).append(record)
        formatter.write_paragraph()
        for group, records in groups.items():
            formatter.write(f"{group}:\n")
            with formatter.indentation():
                formatter.write_dl(records)


class Group(TyperGroup):
    """A command of commands, whose help shows the summary of each in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(n, (c.help or "").partition("\n\n")[0]) for n, c in self.commands.items()]
            )


class Commands(Group):
    """Commands by their summaries; what is invoked, or asked for its own help, is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in commands():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the imported command (None: none such) and the arguments left."""
        name, command, left = super().resolve_command(ctx, args)
        return name, command and import_command(str(name)), left


def import_command(name: str) -> Any:
    """Import command `name`, a function or a group of them by the registry, as a click command."""
    function = attribute_at(COMMANDS[name][0])
    application, build = function, cast(Any, typer.main.get_group)
    if not isinstance(function, typer.Typer):
        application, build = typer.Typer(add_completion=False), typer.main.get_command
        application.command(context_settings=getattr(function, "context_settings", None))(function)
    application.info.cls = Group
    for inner in application.registered_commands:
        inner.cls = Command
    imported: Any = build(application)
    imported.name, imported.rich_markup_mode = name, None
    return imported


app = typer.Typer(
    name="sps",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    """Print the version and end with typer.Exit, if `requested`."""
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
    """Run the command that the arguments name; rank 0 prints its messages. Return its result."""
    with lines_to(say if ranks().rank == 0 else None):
        return app(standalone_mode=False)


def run_silently() -> int:
    """Run the command on a rank above 0, without output but for `--debug`; return the exit code.

    Commands that ranks do not share (`IN_STEP`) end at once with OK. Ctrl-C is ignored; an error is
    written for torchrun.
    """
    if not set(sys.argv[1:2]) & set(IN_STEP):
        return Exit.OK
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides, and its end ends the others
    if not debugging():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
    return exit_code(command)


def main() -> None:
    """Run the command line and exit; ranks of torchrun but the first are silent."""
    show_what_can_be_shown()
    if ranks().rank > 0:
        os._exit(run_silently())  # gloo aborts if its shutdown follows the end of rank 0
    sys.exit(exit_code(command))

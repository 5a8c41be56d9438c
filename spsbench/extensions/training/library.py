"""Training as a function: a draft model or a head for a target."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from spsbench.errors import UsageError
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore, takes_say
from spsbench.models.prepare import prepare
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.grid import Grid
from spsbench.settings.options import parse

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
    kind = DraftTraining if what == "draft" else HeadTraining
    given = {"out": OUT[what]} | {n: value for n, value in options.items() if value is not None}
    training, grid, place, access = parse(given, kind, Grid, OutputFolder, Access)
    request = grid.under({"k": (0,)}).one()
    target = request.target
    if target.ranks > 1:
        raise UsageError(f"{target.ranks} ranks (torchrun): expected one, which trains alone")
    if target.dtype not in ("auto", "float32") and target.device == "cpu":
        log.info("note: the target computes in its dtype; what learns is float32")
    prepare([request], access)

    with importing_libraries():
        from spsbench.extensions.training.run import Trainer

    return Trainer(
        target=target,
        options=training,
        pair_options=grid.given,
        place=place,
        access=access,
        watch=watch,
        stop=stop,
        command=command,
    ).run()

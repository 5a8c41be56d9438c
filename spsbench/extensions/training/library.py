"""Training: a draft model or a head for a target."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.extensions.training.options import OF_DRAFT, OF_HEAD, DraftTraining, HeadTraining
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore, no_lines, takes_say
from spsbench.models.prepare import prepare
from spsbench.pair.load import load
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import OF_OUTPUT, OutputFolder, access_of
from spsbench.settings.options import convert_options, take_options
from spsbench.store.atomic import replace_file

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
    sizes = ("layers", "pruned", "draft_vocab", "inner")
    if training.start and (size := next((n for n in sizes if getattr(training, n, None)), None)):
        raise UsageError(f"`{size}` with `start`: expected one of the two. Leave one out")
    if training.texts is not None and training.prompts:
        raise UsageError("`texts` with `prompts`: expected one of the two. Leave one out")
    if isinstance(training, HeadTraining) and training.on_policy:
        raise UsageError(
            "`on_policy` with a head: expected a draft model. A head writes no text of its own: "
            "each of its rounds begins in the target's. Leave it out"
        )
    cell = make_cell(**remaining, k=0)
    if cell.target.dtype not in ("auto", "float32") and cell.target.device == "cpu":
        log.info("note: texts and laws are computed in the target's dtype; what learns is float32")
    prepare(cell, access)

    with importing_libraries():
        from spsbench.extensions.training.acceptance import DrafterCosts
        from spsbench.extensions.training.conduct import Trainer
        from spsbench.metrics.costs_file import dumps, read_costs
        from spsbench.planning.pair_costs import measure_costs

    measured = None if training.costs is None else read_costs(training.costs)

    def price(folder: Path, drafter: str, cache_path: Path) -> DrafterCosts | None:
        """Measure the cost of a student's round, once, since the cost depends on shape alone."""
        if measured is not None:
            costs = measured
        elif training.cost_seconds == 0:
            return None
        elif cache_path.is_file():
            costs = read_costs(cache_path)
            log.info(f"using the costs measured when the training began ({cache_path})")
        else:
            log.info(
                f"measuring the cost of a round, for {training.cost_seconds:g} s (`cost_seconds`)"
            )
            options = {**remaining, "draft": str(folder), "drafter": drafter, "k": 4}
            options |= {"temperature": training.temperature, "top_p": training.top_p}
            with no_lines():
                pair = load(**options, offline=True, threads=access.threads)
            costs = measure_costs(pair, seconds=training.cost_seconds)
        replace_file(cache_path, dumps(costs).encode())
        arm = next((name for name in costs.arms if name != "none"), None)
        return None if arm is None else DrafterCosts(costs, arm)

    return Trainer(
        target=cell.target,
        options=training,
        place=place,
        access=access,
        price=price,
        watch=watch,
        stop=stop,
        command=command,
    ).run()

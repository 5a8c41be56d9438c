"""What a pair of models costs on this machine, and what drafts of other shapes would."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from spsbench.api.pair import Pair
from spsbench.api.prompts import Prompt, ids_of
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.shape import Shape, ShapeCost
from spsbench.planning.measure import CONTEXTS, SECONDS, Pace, measure
from spsbench.planning.shapes import CONTEXT, measure_shapes
from spsbench.planning.shapes import SECONDS as OF_SHAPES

ANY = 4096  # tokens of a text that stands for any

Watch = Callable[[Pace], None]


def unseen(pace: Pace) -> None:
    """Nobody is told."""


def measure_costs(
    pair: Pair,
    *methods: Mapping[str, Any],
    prompt: Prompt | None = None,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
    watch: Watch = unseen,
) -> Costs:
    """The costs of the pair's own method, or of `methods`, each as options of a call.

    `measure_costs(pair, {"verifier": "block"}, {"drafter": "ngram"})`.

    Args:
        prompt: what the models read; without one, tokens at random, which suit no drafter that
            looks for repetitions.
        contexts: tokens that are cached before a pass.
        seconds: what it may take, if the fewest turns do not take longer.
        watch: is told after each turn.

    Raises:
        SpsError: methods that have no costs of their own, or models that cannot be loaded.
    """
    cells = [pair.configured(**method) for method in methods or ({},)]
    text = _text(pair, prompt)
    return measure(cells, text, contexts=contexts, seconds=seconds, watch=watch)


def measure_draft_shapes(
    pair: Pair,
    shapes: Sequence[Shape],
    *,
    context: int = CONTEXT,
    seconds: float = OF_SHAPES,
    watch: Watch = unseen,
) -> tuple[Costs, list[ShapeCost]]:
    """The costs of drafts of some shapes beside the pair's target, and of its own draft model.

    Raises:
        SpsError: a shape that this kind of model cannot have.
    """
    return measure_shapes(
        pair.cell,
        pair.model_cache.load,
        shapes,
        _text(pair, None),
        context=context,
        seconds=seconds,
        watch=watch,
    )


def _text(pair: Pair, prompt: Prompt | None) -> list[int]:
    if prompt is not None:
        return list(ids_of(pair.loaded, prompt, chat=False, system=None))
    return Random(0).choices(range(pair.loaded.vocab_size), k=ANY)

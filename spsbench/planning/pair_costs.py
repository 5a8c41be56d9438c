"""Costs of a pair and of other draft shapes on this machine, and layers to skip."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

from spsbench.messages import ignore
from spsbench.methods.layer_search import Bench, Skip, Text, search
from spsbench.methods.layer_search import best as best
from spsbench.methods.resolve import check_weights, warp
from spsbench.metrics.costs import Costs
from spsbench.models.cache import Loaded
from spsbench.models.prompts import Prompt, ids_of
from spsbench.planning.forecast.links_and_shapes import Shape, ShapeCost
from spsbench.planning.measure import CONTEXTS, SECONDS, CostProgress, measure
from spsbench.planning.shapes_and_ranks import CONTEXT, measure_shapes
from spsbench.planning.shapes_and_ranks import SECONDS as OF_SHAPES
from spsbench.plugins import make

ANY = 4096  # tokens of a text that represents any

Watch = Callable[[CostProgress], None]


def measure_costs(
    pair: Any,
    *methods: Mapping[str, Any],
    prompt: Prompt | None = None,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = SECONDS,
    watch: Watch = ignore,
) -> Costs:
    """Measure the costs of the pair's own method, or of `methods`, each as options of a call.

    `measure_costs(pair, {"verifier": "block"}, {"drafter": "ngram"})`.

    Args:
        prompt: input of the models; None: random tokens, which suit no drafter that
            looks for repetitions.
        contexts: numbers of cached tokens before a pass.
        seconds: time limit, unless the minimum number of turns takes longer.
        watch: progress callback, called after each turn.

    Raises:
        SpsError: methods that have no costs of their own, or models that cannot be loaded.
    """
    cells = [pair.configured(**method) for method in methods or ({},)]
    text = _text(pair, prompt)
    return measure(cells, text, contexts=contexts, seconds=seconds, watch=watch)


def measure_draft_shapes(
    pair: Any,
    shapes: Sequence[Shape],
    *,
    context: int = CONTEXT,
    seconds: float = OF_SHAPES,
    watch: Watch = ignore,
) -> tuple[Costs, list[ShapeCost]]:
    """Measure drafts of some shapes with the pair's target, and its own draft model.

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


def _text(pair: Any, prompt: Prompt | None) -> list[int]:
    if prompt is not None:
        check_weights(pair.cell, "costs")
        return cast("list[int]", ids_of(pair.loaded, prompt, chat=False, system=None))
    return random_text(pair.loaded)


def random_text(loaded: Loaded) -> list[int]:
    """Return random tokens of a vocabulary, which represent any text."""
    return Random(0).choices(range(loaded.vocab_size), k=ANY)


def spare_layers(
    pair: Any,
    prompts: Sequence[Prompt],
    *,
    sublayers: bool = False,
    candidates: int = 4,
    **options: Any,
) -> list[Skip]:
    """Generate a text for each prompt, then search on these texts: see `methods.layer_search`.

    Raises:
        SpsError: invalid options, or no text.
    """
    plain = {**options, "k": 0}
    cell, loaded = pair.configured(**plain)
    check_weights(cell, "a search for layers to skip")
    texts = []
    for number, prompt in enumerate(prompts):
        ids = ids_of(loaded, prompt, chat=False, system=None)
        generation = pair.generation(ids, sample=str(number), **plain)
        for _ in generation:
            pass
        texts.append(Text([*ids, *generation.record.tokens], len(ids)))
    engine = make("engines", cell.models.target.engine)
    bench = Bench(loaded.target, engine, texts, warp(cell), loaded.vocab_size)
    return list(search(bench, sublayers=sublayers, candidates=candidates))

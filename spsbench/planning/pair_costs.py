"""Costs of a pair on this machine."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

from spsbench.messages import ignore
from spsbench.methods.resolve import check_weights
from spsbench.metrics.costs import Costs
from spsbench.models.cache import Loaded
from spsbench.models.prompts import Prompt, ids_of
from spsbench.planning.measure import CONTEXTS, SECONDS, CostProgress, measure

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


def _text(pair: Any, prompt: Prompt | None) -> list[int]:
    if prompt is not None:
        check_weights(pair.cell, "costs")
        return cast("list[int]", ids_of(pair.loaded, prompt, chat=False, system=None))
    return random_text(pair.loaded)


def random_text(loaded: Loaded) -> list[int]:
    """Return random tokens of a vocabulary, which represent any text."""
    return Random(0).choices(range(loaded.vocab_size), k=ANY)

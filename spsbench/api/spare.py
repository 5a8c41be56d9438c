"""Which layers of a pair's target can be spared, on texts that it writes itself."""

from collections.abc import Sequence
from typing import Any

from spsbench.api.prompts import Prompt, ids_of
from spsbench.audit.statistical.pair import prompts_of
from spsbench.errors import DataError
from spsbench.methods.layer_search import Bench, Skip, Text, search
from spsbench.methods.layer_search import best as best
from spsbench.methods.resolve import warp
from spsbench.plugins import make
from spsbench.spec import Spec


def prompts_for(pair: Any, task: Spec, most: int) -> list[Prompt]:
    """The first prompts of a task, as token ids.

    Raises:
        DataError: none that fits the context.
    """
    cell, loaded = pair.configured()
    found: list[Prompt] = [prompt.ids for prompt in prompts_of(cell, loaded, [task], most)]
    if not found:
        raise DataError(f"no prompt fits the context ({task}): expected one. Name another task")
    return found


def spare_layers(
    pair: Any,
    prompts: Sequence[Prompt],
    *,
    sublayers: bool = False,
    candidates: int = 4,
    **asked: Any,
) -> list[Skip]:
    """Let the target write after each prompt, then search on these texts: see `methods.skips`.

    Raises:
        SpsError: options that cannot be meant, or no text.
    """
    plain = {**asked, "k": 0}
    cell, loaded = pair.configured(**plain)
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

"""Costs of a pair on this machine, and of a plan, which keeps them in a file."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from spsbench.messages import ignore
from spsbench.methods.resolve import check_weights
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.models.prompts import Prompt, ids_of
from spsbench.planning.measure import CONTEXTS, SECONDS, Watch, measure
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

ANY = 4096  # tokens of a text that represents any


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
    if prompt is None:
        text = Random(0).choices(range(pair.loaded.vocab_size), k=ANY)
    else:
        check_weights(pair.cell, "costs")
        text = cast("list[int]", ids_of(pair.loaded, prompt, chat=False, system=None))
    return measure(cells, text, contexts=contexts, seconds=seconds, watch=watch)


def measured_costs(
    path: Path, setting: Mapping[str, Any], drafts: Iterable[str], measure: Callable[[], Costs]
) -> Costs:
    """Return the costs in the file of a plan, measured if the file lacks them.

    Costs that contradict each other are measured once more.

    Args:
        setting: of the machine and the models now; costs of another setting are measured again.
        drafts: names of the drafts that must have costs.
    """
    if path.exists():
        costs = read_costs(path)
        changed = [name for name in setting if setting[name] != costs.setting.get(name)]
        changed += [name for name in drafts if name not in costs.arms]
        if not changed:
            return costs
        log.info(f"note: costs are measured again, of another setting ({', '.join(changed)})")
    costs = measure()
    if contradictions := costs.contradictions():
        log.info(
            f"note: the costs contradict each other, and are measured again: {contradictions[0]}"
        )
        costs = min(measure(), costs, key=lambda costs: len(costs.contradictions()))
    replace_file(path, dumps(costs).encode("ascii"))
    return read_costs(path)

"""The law of outputs that must come out, apart from the loop."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from spsbench.audit.exact.tables import Law
from spsbench.audit.warping import laws_of
from spsbench.settings.cell import WarpSettings

Outcome = tuple[tuple[int, ...], str]
"""The tokens of a generation and why it ended."""


def warped(law: Law, **settings: Any) -> Law:
    """The law after the warp of these settings, by the audit's own code."""
    warp = WarpSettings(**settings)

    @cache
    def after(prefix: tuple[int, ...]) -> tuple[float, ...]:
        row = law(prefix)
        if warp.temperature == 0:
            return tuple(float(x == row.index(max(row))) for x in range(len(row)))
        with np.errstate(divide="ignore"):
            logits = np.log(np.array([row], np.float64))
        return tuple(laws_of(logits, warp).law[0].tolist())

    return after


def law_of_outputs(
    q: Law,
    prompt: tuple[int, ...],
    tokens: int,
    *,
    eos: frozenset[int] = frozenset(),
    limit: int | None = None,
    stop: Callable[[Sequence[int]], bool] = lambda output: False,
) -> dict[Outcome, float]:
    """Every output that the target alone would make, token after token, and its probability."""
    room = math.inf if limit is None else limit - len(prompt)
    budget = min(tokens, room)
    outcomes: dict[Outcome, float] = {}

    def walk(output: tuple[int, ...], weight: float) -> None:
        finish = None
        if output and output[-1] in eos:
            finish = "eos"
        elif output and stop(output):
            finish = "stop"
        elif len(output) == budget:
            finish = "length" if tokens <= room else "context"
        if finish is not None:
            outcomes[output, finish] = weight
            return
        for token, probability in enumerate(q(prompt + output)):
            if probability > 0:
                walk((*output, token), weight * probability)

    walk((), 1.0)
    return outcomes

"""What must come out, in plain Python and apart from the loop: the warp, and the law of outputs."""

import math
from collections.abc import Callable, Sequence
from functools import cache

from spsbench.audit.exact.tables import Law

Outcome = tuple[tuple[int, ...], str]
"""The tokens of a generation and why it ended."""


def warped(law: Law, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Law:
    """The law after temperature, then top-k, then top-p."""

    @cache
    def after(prefix: tuple[int, ...]) -> tuple[float, ...]:
        row = list(law(prefix))
        if temperature == 0:
            return tuple(float(x == row.index(max(row))) for x in range(len(row)))
        row = [x ** (1 / temperature) for x in row]
        if 0 < top_k < len(row):
            least = sorted(row, reverse=True)[top_k - 1]
            row = [x if x >= least else 0.0 for x in row]
        total = sum(row)
        row = [x / total for x in row]
        if top_p < 1:
            mass = 0.0
            for token in sorted(range(len(row)), key=lambda token: -row[token]):
                if mass >= top_p:
                    row[token] = 0.0
                mass += row[token]
        total = sum(row)
        return tuple(x / total for x in row)

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

"""Tables of costs with round numbers."""

from collections.abc import Callable, Sequence

import numpy as np

from spsbench.metrics.costs import Arm, Costs, Rule
from spsbench.metrics.surfaces import Surface

TURNS = 8


def surface(
    seconds: Callable[[int, int], float],
    tokens: Sequence[int] = (1, 2, 5, 9),
    contexts: Sequence[int] = (100, 200),
    slow: Sequence[float] = (1.0,) * TURNS,
) -> Surface:
    """`seconds(tokens, context)` at every point, times what each turn was slower."""
    grid = [[seconds(n, context) for context in contexts] for n in tokens]
    return Surface(
        tuple(tokens), tuple(contexts), np.multiply.outer(np.array(slow), np.array(grid))
    )


def arm(
    draft: float, fixed: float = 0.5, verifier: str = "sps", slow: Sequence[float] = (1.0,) * TURNS
) -> Arm:
    """A drafter that takes `draft` a token, of rounds that take `fixed` more than their parts."""
    k = (1, 4, 8)
    return Arm(
        verifier=verifier,
        drafted=surface(lambda n, _: n, k),
        draft=surface(lambda n, _: draft * n, k, slow=slow),
        unexplained=surface(lambda n, _: fixed, k),
    )


def rule() -> Rule:
    return Rule(
        sampling=surface(lambda n, _: 0.1 * n, contexts=[150]),
        verify=surface(lambda n, _: 0.2, contexts=[150]),
        host=surface(lambda n, _: 0.3, contexts=[150]),
    )


def costs(**more: object) -> Costs:
    """A target of 10 seconds and one more for each token more; drafts of 2 seconds a token."""
    values: dict[str, object] = {
        "passes": surface(lambda n, context: 9.0 + n + (context - 100) / 100),
        "arms": {"none": arm(0.0, verifier="match"), "model small": arm(2.0)},
        "rules": {"sps": rule(), "match": rule()},
        "setting": {"machine": {"cpu": "made up"}, "threads": 2},
    }
    return Costs(**{**values, **more})  # type: ignore[arg-type]

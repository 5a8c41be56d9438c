"""A table of costs as it would be if ranks shared the models: what is read is divided, links wait.

    target pass  v(n) = w(n) / N + (2 L + 1) r(n) + g(n) + 2 r(0)
    drafted token   d = w_draft                                              on rank 0 alone
                   or   w_draft / N + (2 L_draft + 1) r(1) + g(1) + 2 r(0)   shared

r(n) is an all-reduce of the states of n tokens, g(n) the gather of their logits, r(0) one of a few
numbers: rank 0 says what is fed, and then what is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.costs import Arm, Costs
from spsbench.planning.forecast.link import Link
from spsbench.planning.forecast.surface import Surface

MESSAGE = 512  # bytes of what rank 0 says
NONE: Mapping[str, "Sizes"] = MappingProxyType({})


class Sizes(NamedTuple):
    """Of a model that could be shared."""

    layers: int
    width: int
    vocabulary: int
    item: int  # bytes of a number

    def waits(self, ranks: int, link: Link, tokens: float) -> float:
        """Seconds that a pass over `tokens` tokens waits for the link."""
        if ranks == 1:
            return 0.0
        state, logits = self.width * self.item * tokens, self.vocabulary * self.item * tokens
        reduces = (2 * self.layers + 1) * link.reduce(ranks, state)
        return reduces + link.gather(ranks, logits) + 2 * link.reduce(ranks, MESSAGE)


def over_ranks(
    costs: Costs, ranks: int, link: Link, target: Sizes, drafts: Mapping[str, Sizes] = NONE
) -> Costs:
    """The costs if `ranks` shared the target, and the draft models of the arms in `drafts`.

    All of a pass is taken to be divided. What is not explained, sampling, rules and the loop stay
    as they were measured: they are rank 0's.
    """
    passes = _shared(
        costs.passes, ranks, [target.waits(ranks, link, n) for n in costs.passes.tokens]
    )
    arms = {}
    for name, arm in costs.arms.items():
        inner = _target(arm, ranks, link, target)
        if name in drafts:
            alone = [k * drafts[name].waits(ranks, link, 1) for k in arm.draft.tokens]
            inner = replace(inner, draft=_shared(arm.draft, ranks, alone))
        arms[name] = inner
    return replace(costs, passes=passes, arms=arms)


def _target(arm: Arm, ranks: int, link: Link, target: Sizes) -> Arm:
    """The pass inside its rounds, which feeds a token more than were drafted."""
    fed = arm.drafted.seconds.mean(0) + 1  # [K, C]
    waits = np.vectorize(lambda n: target.waits(ranks, link, float(n)), otypes=[float])(fed)
    surface = arm.target
    return replace(arm, target=replace(surface, seconds=surface.seconds / ranks + waits))


def _shared(surface: Surface, ranks: int, waits: Sequence[float]) -> Surface:
    added: Floats = np.array(waits, dtype=np.float64)[None, :, None]
    return replace(surface, seconds=surface.seconds / ranks + added)

"""How often a draft must be right to pay for itself, at what it costs.

Acceptance is taken to be one alpha, independent from token to token: then a round of K emits
tau = (1 - alpha^(K+1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation 1).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spsbench.planning.forecast.break_even import alpha_for
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.grid import digits

EVERY_K = range(1, 17)


class Needed(NamedTuple):
    """The least acceptance rate with which some K reaches a speed-up."""

    alpha: float
    k: int

    def __str__(self) -> str:
        return f"{digits(self.alpha)} (K = {self.k})"


def needed_alpha(costs: Costs, name: str, context: float, gain: float = 1.0) -> Needed | None:
    """The least alpha with which a drafter gains `gain`, and the K that does; None: none does.

    A draft that drafts less than K is taken to draft all of it.
    """
    found = []
    for k in EVERY_K:
        a_token = costs.speed_up(name, k, 1.0, context).value  # of a round that emits one token
        alpha = alpha_for(gain / a_token, k)
        if alpha is not None:
            found.append(Needed(alpha, k))
    return min(found, default=None)


def by_gain(
    costs: Costs, name: str, context: float, gains: Iterable[float]
) -> dict[str, Needed | None]:
    """The same for each of some speed-ups, by what they are called: `1.5`."""
    return {f"{gain:g}": needed_alpha(costs, name, context, gain) for gain in gains}


def plain(found: Mapping[str, Needed | None]) -> dict[str, dict[str, Any] | None]:
    """The same in plain values."""
    return {gain: None if each is None else each._asdict() for gain, each in found.items()}


def in_words(found: Needed | None) -> str:
    """`0.71 (K = 3)`, or `never`."""
    return "never" if found is None else str(found)

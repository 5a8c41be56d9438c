"""Losses of a student at each position of a text, and the distributions that they compare.

`loss_of` reads a loss by its name: `kl`, `jsd:beta=0.1`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from spsbench.errors import UsageError
from spsbench.spec import Spec

NO_TENSOR = torch.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions:
    """Distributions of the student and the target, p and q, at N positions over Vd tokens.

    Where a head has a reduced vocabulary, q is not renormalised: its rows add up to less than 1,
    and p is 0 on the other tokens.

    Attributes:
        log_p: [N, Vd].
        tokens: [N] column of the token that the target wrote; -1 if p has no such column.
        q: [N, Vd], no gradient; empty for a loss of tokens alone.
        log_q: [N, Vd], -inf where q is 0.
    """

    log_p: Tensor
    tokens: Tensor
    q: Tensor = NO_TENSOR
    log_q: Tensor = NO_TENSOR

    @property
    def overlap(self) -> Tensor:
        """Return [N] sum of min(p, q), the acceptance probability of a token drawn from p."""
        return overlap_of(self.log_p.exp(), self.q)


Loss = Callable[[Distributions], Tensor]
"""Maps distributions to the loss at each of N positions, [N]."""


def overlap_of(p: Tensor, q: Tensor) -> Tensor:
    """Return [...] the sum of min(p, q) of distributions [..., V]."""
    return p.minimum(q).sum(-1)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return [N] the sums of products of [N, V] weights and values, with 0 * inf = 0."""
    return (weights * values.masked_fill(weights == 0, 0.0)).sum(-1)


LEAST = 1e-9


def acceptance(d: Distributions) -> Tensor:
    """Return `-log sum min(p, q)` (negative log acceptance, arXiv 2602.23881).

    The logarithm has a useful gradient from random weights on.
    """
    return -d.overlap.clamp(min=LEAST).log()


def cross_entropy(d: Distributions) -> Tensor:
    """Return `-log p` of the token that the target wrote; 0 outside the vocabulary of p.

    Source: sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2).
    """
    in_vocabulary = d.tokens >= 0
    picked = d.log_p.gather(-1, d.tokens.clamp(min=0)[:, None])[:, 0]
    return -picked * in_vocabulary


def feature(guessed: Tensor, true: Tensor) -> Tensor:
    """Return [N] smooth L1 of [N, H] features, the mean over H.

    Source: EAGLE's regression of the target's next feature (arXiv 2401.15077, section 4.2).
    """
    return smooth_l1_loss(guessed, true, reduction="none").mean(-1)


def forward_kl(d: Distributions) -> Tensor:
    """Return KL(q || p), the sum of q (log q - log p) over the drafter's vocabulary.

    Source: supervised distillation (DistillSpec, arXiv 2310.08461, section 4).
    """
    return weighted_sum(d.q, d.log_q - d.log_p)


STEEP = 3.0


def hybrid(d: Distributions, steep: float = STEEP) -> Tensor:
    """Return `w KL(q || p) + (1 - w) TV(p, q)`, where w = exp(-steep alpha) has no gradient.

    Alpha is the acceptance of the position: KL dominates while alpha is low, total variation when
    it is high. Source: LK hybrid (arXiv 2602.23881).
    """
    alpha = d.overlap
    weight = (-steep * alpha.detach()).exp()
    return weight * forward_kl(d) + (1 - weight) * (1 - alpha)


def jensen_shannon(d: Distributions, beta: float = 0.5) -> Tensor:
    """Return `beta` KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p.

    Outside the drafter's vocabulary, m is beta q. Source: the generalised Jensen-Shannon divergence
    (GKD, arXiv 2306.13649, eq. 1; DistillSpec).
    """
    mixed = torch.logaddexp(d.log_q + math.log(beta), d.log_p + math.log1p(-beta))
    unknown = (1 - d.q.sum(-1)).clamp(min=0) * -math.log(beta)
    of_q = weighted_sum(d.q, d.log_q - mixed) + unknown
    of_p = (d.log_p.exp() * (d.log_p - mixed)).sum(-1)
    return beta * of_q + (1 - beta) * of_p


FLOOR = -30.0  # lower bound of log q: top-p sets probabilities to 0, and log 0 has no gradient


def reverse_kl(d: Distributions) -> Tensor:
    """Return KL(p || q), the sum of p (log p - log q), where q is at least e^-30.

    Source: mode-seeking distillation (DistillSpec, arXiv 2310.08461, section 4).
    """
    return (d.log_p.exp() * (d.log_p - d.log_q.clamp(min=FLOOR))).sum(-1)


def top_k(d: Distributions, k: int = 10) -> Tensor:
    """Return `-sum q log p` over the target's k likeliest tokens.

    Source: HASS (arXiv 2408.15766, section 3.1).
    """
    values, ids = d.q.topk(min(k, d.q.shape[-1]), -1)
    return -(values * d.log_p.gather(-1, ids)).sum(-1)


def total_variation(d: Distributions) -> Tensor:
    """Return TV(p, q) = 1 - alpha, the rejection probability.

    The gradient vanishes where p is far from q. Source: Leviathan et al. 2023, corollary 3.6;
    DistillSpec, arXiv 2310.08461.
    """
    return 1 - d.overlap


LOSSES: Mapping[str, Callable[..., Any]] = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tv": total_variation,
    "acceptance": acceptance,
    "hybrid": hybrid,
    "top-k": top_k,
}
ACCEPTANCES = frozenset({"tv", "acceptance", "hybrid"})
"""Losses of the acceptance: they compare distributions after temperature and truncation."""

TOKEN_LOSSES = frozenset({"ce"})
"""Losses of the target's tokens alone, without the target's distribution at each position."""


ARGUMENTS: Mapping[str, tuple[str, str, Callable[[Any], bool]]] = {
    "jsd": ("beta", "a number between 0 and 1, such as 0.5", lambda v: 0 < v < 1),
    "hybrid": ("steep", "a number above 0", lambda v: v > 0),
    "top-k": ("k", "a whole number of 1 or more", lambda v: type(v) is int and v >= 1),
}
"""Loss -> the argument that a spec may set, what it must be in words, and the test."""


def loss_of(spec: Spec) -> Loss:
    """Return the loss function that a user names; UsageError: none, or an argument it refuses."""
    if spec.name not in LOSSES:
        raise UsageError(f"`loss` {spec}: expected one of {', '.join(LOSSES)}. Choose one")
    argument, expected, holds = ARGUMENTS.get(spec.name, ("", "", bool))
    for name, value in spec.args:
        if name != argument:
            raise UsageError(f"`loss` {spec}: {name} is no argument of {spec.name}. Leave it out")
        if isinstance(value, str | bool) or not holds(value):
            raise UsageError(f"`loss` {spec}: expected {name} to be {expected}")
    return partial(LOSSES[spec.name], **dict(spec.args))

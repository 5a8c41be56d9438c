"""Losses of a student at each position of a text, and the distributions that they compare.

`loss_of` reads a loss by its name: `kl`, `jsd:beta=0.1`. `glanced` selects the answers that a block
drafter sees while it trains.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentLaw:
    """Distribution p of the student at N positions over its Vd tokens, and the tokens there.

    Attributes:
        log_p: [N, Vd].
        tokens: [N] column of the token that the target wrote; -1 if p has no such column.
    """

    log_p: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws(StudentLaw):
    """Distributions of the student and the target, p and q.

    Where a head has a reduced vocabulary, q is not renormalised: its rows add up to less than 1,
    and p is 0 on the other tokens.

    Attributes:
        q: [N, Vd], no gradient.
        log_q: [N, Vd], -inf where q is 0.
    """

    q: Tensor
    log_q: Tensor

    @property
    def overlap(self) -> Tensor:
        """Return [N] sum of min(p, q), the acceptance probability of a token drawn from p."""
        return overlap(self.log_p.exp(), self.q)


Loss = Callable[[Any], Tensor]
"""Maps `Laws` or a `StudentLaw` to the loss at each of N positions, [N]."""


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """Return [...] the sum of min(p, q) of distributions [..., V]."""
    return p.minimum(q).sum(-1)


def expected(law: Tensor, values: Tensor) -> Tensor:
    """Return [N] the sums of products of [N, V] weights and values, with 0 * inf = 0."""
    return (law * values.masked_fill(law == 0, 0.0)).sum(-1)


LEAST = 1e-9


def acceptance(laws: Laws) -> Tensor:
    """Return `-log sum min(p, q)` (negative log acceptance, arXiv 2602.23881).

    The logarithm has a useful gradient from random weights on.
    """
    return -laws.overlap.clamp(min=LEAST).log()


def cross_entropy(foretold: StudentLaw) -> Tensor:
    """Return `-log p` of the token that the target wrote; 0 outside the vocabulary of p.

    Source: sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2).
    """
    in_vocabulary = foretold.tokens >= 0
    picked = foretold.log_p.gather(-1, foretold.tokens.clamp(min=0)[:, None])[:, 0]
    return -picked * in_vocabulary


def feature(guessed: Tensor, true: Tensor) -> Tensor:
    """Return [N] smooth L1 of [N, H] features, the mean over H.

    Source: EAGLE's regression of the target's next feature (arXiv 2401.15077, section 4.2).
    """
    return smooth_l1_loss(guessed, true, reduction="none").mean(-1)


def forward_kl(laws: Laws) -> Tensor:
    """Return KL(q || p), the sum of q (log q - log p) over the drafter's vocabulary.

    Source: supervised distillation (DistillSpec, arXiv 2310.08461, section 4).
    """
    return expected(laws.q, laws.log_q - laws.log_p)


MAX_REVEALED = 0.4  # share of the wrong slots at the start


def glanced(wrong: Tensor, done: float, draw: torch.Generator) -> Tensor:
    """Return which slots of blocks are revealed (glancing): a prefix of a block, never all of it.

    In total N = lambda d slots are revealed, where d counts the wrong slots (the Hamming distance
    of the drafter's tokens from the target's) and lambda falls from 0.4 to 0. Blocks and the length
    of each prefix are drawn at random; the rest of a block is predicted from its prefix.

    Args:
        wrong: [n, k] bool, slots whose likeliest token is not the target's; on the host.
        done: share of the training that is over.
        draw: generator of blocks and lengths.

    Returns:
        [n, k] bool.
    """
    blocks, k = wrong.shape
    remaining = int(MAX_REVEALED * (1 - done) * int(wrong.sum())) if k > 1 else 0
    revealed = torch.zeros(blocks, k, dtype=torch.bool)
    for block in torch.randperm(blocks, generator=draw).tolist():
        if remaining <= 0:
            break
        length = min(remaining, int(torch.randint(1, k, (), generator=draw)))
        revealed[block, :length] = True
        remaining -= length
    return revealed


STEEP = 3.0


def hybrid(laws: Laws, steep: float = STEEP) -> Tensor:
    """Return `w KL(q || p) + (1 - w) TV(p, q)` with w = exp(-steep alpha), without gradient.

    Alpha is the acceptance of the position: KL dominates while alpha is low, total variation when
    it is high. Source: LK hybrid (arXiv 2602.23881).
    """
    alpha = laws.overlap
    weight = (-steep * alpha.detach()).exp()
    return weight * forward_kl(laws) + (1 - weight) * (1 - alpha)


def jensen_shannon(laws: Laws, beta: float = 0.5) -> Tensor:
    """Return `beta` KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p.

    Outside the drafter's vocabulary, m is beta q. Source: the generalised Jensen-Shannon divergence
    (GKD, arXiv 2306.13649, eq. 1; DistillSpec).
    """
    mixed = torch.logaddexp(laws.log_q + math.log(beta), laws.log_p + math.log1p(-beta))
    unknown = (1 - laws.q.sum(-1)).clamp(min=0) * -math.log(beta)
    of_q = expected(laws.q, laws.log_q - mixed) + unknown
    of_p = (laws.log_p.exp() * (laws.log_p - mixed)).sum(-1)
    return beta * of_q + (1 - beta) * of_p


FLOOR = -30.0  # lower bound of log q: top-p sets probabilities to 0, and log 0 has no gradient


def reverse_kl(laws: Laws) -> Tensor:
    """Return KL(p || q), the sum of p (log p - log q), where q is at least e^-30.

    Source: mode-seeking distillation (DistillSpec, arXiv 2310.08461, section 4).
    """
    return (laws.log_p.exp() * (laws.log_p - laws.log_q.clamp(min=FLOOR))).sum(-1)


def top_k(laws: Laws, k: int = 10) -> Tensor:
    """Return `-sum q log p` over the target's k likeliest tokens.

    Source: HASS (arXiv 2408.15766, section 3.1).
    """
    values, ids = laws.q.topk(min(k, laws.q.shape[-1]), -1)
    return -(values * laws.log_p.gather(-1, ids)).sum(-1)


def total_variation(laws: Laws) -> Tensor:
    """Return TV(p, q) = 1 - alpha, the rejection probability.

    The gradient vanishes where p is far from q. Source: Leviathan et al. 2023, corollary 3.6;
    DistillSpec, arXiv 2310.08461.
    """
    return 1 - laws.overlap


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

LAWLESS = frozenset({"ce"})
"""Losses of the target's tokens alone, without the target's distribution at each position."""


def loss_of(spec: Spec) -> Loss:
    """Return the loss that a user names."""
    if spec.name not in LOSSES:
        raise UsageError(f"`loss` {spec}: expected one of {', '.join(LOSSES)}. Choose one")
    loss, arguments = LOSSES[spec.name], {"jsd": {"beta"}, "hybrid": {"steep"}, "top-k": {"k"}}
    args = dict(spec.args)
    if unknown := sorted(args.keys() - arguments.get(spec.name, set())):
        raise UsageError(f"`loss` {spec}: {unknown[0]} is no argument of {spec.name}. Leave it out")
    ranges: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "beta": ("a number between 0 and 1, such as 0.5", lambda v: 0 < v < 1),
        "steep": ("a number above 0", lambda v: v > 0),
        "k": ("a whole number of 1 or more", lambda v: type(v) is int and v >= 1),
    }
    for name, value in args.items():
        expected, holds = ranges[name]
        if isinstance(value, str | bool) or not holds(value):
            raise UsageError(f"`loss` {spec}: expected {name} to be {expected}")
    return partial(loss, **args) if args else loss

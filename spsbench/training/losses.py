"""Losses of a student at each place of a text, and the laws that they compare."""

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
    """Law p of the student at N places, over the Vd tokens it knows, and the tokens there.

    Attributes:
        log_p: [N, Vd].
        tokens: [N] the column of the token that the target wrote; -1 where p does not know it.
    """

    log_p: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws(StudentLaw):
    """With the target's law q.

    Where a head has a vocabulary of its own, q is left as it is: its rows add up to less than 1,
    and p is 0 on the rest.

    Attributes:
        q: [N, Vd], no gradient.
        log_q: [N, Vd], -inf where q is 0.
    """

    q: Tensor
    log_q: Tensor

    @property
    def overlap(self) -> Tensor:
        """[N] sum of min(p, q): the chance that a token drawn from p is kept."""
        return overlap(self.log_p.exp(), self.q)


Loss = Callable[[Any], Tensor]
"""Takes `Laws` or a `StudentLaw`; returns the value to lower at each of N places, [N]."""


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """[..., V] laws -> [...] sum of min(p, q)."""
    return p.minimum(q).sum(-1)


def expected(law: Tensor, values: Tensor) -> Tensor:
    """[N, V] weights and values -> [N] their sum of products, where 0 times infinity is 0."""
    return (law * values.masked_fill(law == 0, 0.0)).sum(-1)


# `-log alpha`: the acceptance of a place itself, on a scale that has a slope from a cold start.

LEAST = 1e-9


def acceptance(laws: Laws) -> Tensor:
    """`-log sum min(p, q)` (negative log acceptance, arXiv 2602.23881)."""
    return -laws.overlap.clamp(min=LEAST).log()


# Sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2).


def cross_entropy(foretold: StudentLaw) -> Tensor:
    """`-log p` of the token that the target wrote; 0 where the drafter does not know it."""
    known = foretold.tokens >= 0
    picked = foretold.log_p.gather(-1, foretold.tokens.clamp(min=0)[:, None])[:, 0]
    return -picked * known


# EAGLE's regression of the target's next feature (arXiv 2401.15077, section 4.2).


def feature(guessed: Tensor, true: Tensor) -> Tensor:
    """[N, H] and [N, H] -> [N] smooth L1, the mean over H."""
    return smooth_l1_loss(guessed, true, reduction="none").mean(-1)


# KL(q || p): supervised distillation (DistillSpec, arXiv 2310.08461, section 4).


def forward_kl(laws: Laws) -> Tensor:
    """Sum of q (log q - log p), over the tokens that the drafter knows."""
    return expected(laws.q, laws.log_q - laws.log_p)


# What a student is shown of its own answers while it learns (glancing).

MOST = 0.4  # share of what was foretold wrongly, at the beginning


def glanced(wrong: Tensor, done: float, draw: torch.Generator) -> Tensor:
    """Which slots of some blocks are shown: the first ones of a block, never all of it.

    N = lambda d slots in all, where d counts what is wrong (the Hamming distance of the drafter's
    tokens from the target's) and lambda falls from 0.4 to 0. Blocks are drawn, and of each how many
    of its slots; so what is shown is a beginning, from which the rest of the block is to be told.

    Args:
        wrong: [n, k] bool, slots whose likeliest token is not the target's; on the host.
        done: share of the training that is over.
        draw: of blocks and lengths.

    Returns:
        [n, k] bool.
    """
    blocks, k = wrong.shape
    left = int(MOST * (1 - done) * int(wrong.sum())) if k > 1 else 0
    shown = torch.zeros(blocks, k, dtype=torch.bool)
    for block in torch.randperm(blocks, generator=draw).tolist():
        if left <= 0:
            break
        length = min(left, int(torch.randint(1, k, (), generator=draw)))
        shown[block, :length] = True
        left -= length
    return shown


# LK hybrid: KL while acceptance is low, total variation when it is high (arXiv 2602.23881).

STEEP = 3.0


def hybrid(laws: Laws, steep: float = STEEP) -> Tensor:
    """`w KL(q || p) + (1 - w) TV(p, q)` with w = exp(-steep alpha), which has no gradient.

    Alpha is that of the place.
    """
    alpha = laws.overlap
    weight = (-steep * alpha.detach()).exp()
    return weight * forward_kl(laws) + (1 - weight) * (1 - alpha)


# The generalised Jensen-Shannon divergence (GKD, arXiv 2306.13649, eq. 1; DistillSpec).


def jensen_shannon(laws: Laws, beta: float = 0.5) -> Tensor:
    """`beta` KL(q || m) + (1 - beta) KL(p || m), where m = beta q + (1 - beta) p.

    Of tokens that the drafter does not know, m is beta q.
    """
    mixed = torch.logaddexp(laws.log_q + math.log(beta), laws.log_p + math.log1p(-beta))
    unknown = (1 - laws.q.sum(-1)).clamp(min=0) * -math.log(beta)
    of_q = expected(laws.q, laws.log_q - mixed) + unknown
    of_p = (laws.log_p.exp() * (laws.log_p - mixed)).sum(-1)
    return beta * of_q + (1 - beta) * of_p


# KL(p || q): seeks modes of the target (DistillSpec, arXiv 2310.08461, section 4).

FLOOR = -30.0  # of log q: top-p leaves tokens out, and log 0 has no gradient


def reverse_kl(laws: Laws) -> Tensor:
    """Sum of p (log p - log q); q is at least e^-30."""
    return (laws.log_p.exp() * (laws.log_p - laws.log_q.clamp(min=FLOOR))).sum(-1)


# HASS's loss over the target's likeliest tokens (arXiv 2408.15766, section 3.1).


def top_k(laws: Laws, k: int = 10) -> Tensor:
    """`-sum q log p` over the k tokens that q has most of."""
    values, ids = laws.q.topk(min(k, laws.q.shape[-1]), -1)
    return -(values * laws.log_p.gather(-1, ids)).sum(-1)


# TV(p, q) = 1 - alpha (Leviathan et al. 2023, corollary 3.6; DistillSpec, arXiv 2310.08461).


def total_variation(laws: Laws) -> Tensor:
    """One minus the overlap: what is rejected. Without hold where p is far from q at first."""
    return 1 - laws.overlap


# The losses by name: `kl`, `jsd:beta=0.1`.

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
"""Those that are an acceptance: the target's law is warped for them as it will be."""

LAWLESS = frozenset({"ce"})
"""Those that look at the target's tokens alone: its law at each place is not needed for them."""


def loss_of(spec: Spec) -> Loss:
    """The loss that a user names.

    Raises:
        UsageError: no such loss, or an argument that it has not, or not so.
    """
    if spec.name not in LOSSES:
        raise UsageError(f"--loss {spec}: expected one of {', '.join(LOSSES)}. Choose one")
    made, known = LOSSES[spec.name], {"jsd": {"beta"}, "hybrid": {"steep"}, "top-k": {"k"}}
    given = dict(spec.args)
    if unknown := sorted(given.keys() - known.get(spec.name, set())):
        raise UsageError(f"--loss {spec}: {unknown[0]} is no argument of {spec.name}. Leave it out")
    ranges: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "beta": ("a number between 0 and 1, such as 0.5", lambda v: 0 < v < 1),
        "steep": ("a number above 0", lambda v: v > 0),
        "k": ("a whole number of 1 or more", lambda v: type(v) is int and v >= 1),
    }
    for name, value in given.items():
        expected, holds = ranges[name]
        if isinstance(value, str | bool) or not holds(value):
            raise UsageError(f"--loss {spec}: expected {name} to be {expected}")
    return partial(made, **given) if given else made

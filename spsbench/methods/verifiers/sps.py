"""Modified rejection sampling (Chen et al. 2023, Algorithm 2 and Theorem 1)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.loop.sampling import host_numbers, residual, row
from spsbench.loop.types import Draft, Noise, Verdict
from spsbench.methods.verifiers.walk_down import (
    SAMPLED_CHAINS,
    Row,
    Tested,
    WalkDown,
    drawn_from,
    row_at,
    uniforms,
    verdict_at,
)


@dataclass(frozen=True)
class Sps(WalkDown):
    """A verifier that keeps x with min(1, q/p) and draws from (q - p)+ at the first rejection."""

    accepts = SAMPLED_CHAINS

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        return by_ratio(draft, q, noise)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        if (u := host_numbers(uniforms(draft, q, noise))) is None:
            return super().__call__(draft, q, noise)
        ratio = ratios(draft, q).tolist()
        end = next((i for i in range(len(u)) if not u[i] < ratio[i]), len(u))
        return verdict_at(draft.tree, end, leftover_of(draft, q, noise)(end))


def by_ratio(draft: Draft, q: Tensor, noise: Noise, lenience: float = 1.0) -> Tested:
    """Test each token of a chain with its ratio over `lenience`; NaN (0 / 0) rejects."""
    passed = uniforms(draft, q, noise) * lenience < ratios(draft, q)
    return (passed, leftover_of(draft, q, noise))


def leftover_of(draft: Draft, q: Tensor, noise: Noise) -> Callable[[Row], Tensor]:
    """Return the draw of the last token from the residual (q - p)+ of a row."""
    return drawn_from(lambda end: residual(row_at(q, end), slot_probs(draft, end)), noise)


def chain_probs(draft: Draft, q: Tensor) -> Tensor:
    """Return [N+1, V], the probs of a chain's slots, and a row of zeros for the bonus token."""
    if draft.probs is None:
        return torch.zeros_like(q)  # only an empty draft has no probs here: see `accepts`
    return pad(draft.probs, (0, 0, 0, 1))


def ratios(draft: Draft, q: Tensor) -> Tensor:
    """Return [N] q / p of each token of a chain, p being 0 without probs; NaN for 0 / 0."""
    at = draft.tokens[:, None]
    q_at = q[: len(at)].gather(1, at)
    p_at = torch.zeros_like(q_at) if draft.probs is None else draft.probs.gather(1, at)
    return (q_at / p_at)[:, 0]


def slot_probs(draft: Draft, slot: Row) -> Tensor | None:
    """Return [V] probs of a chain's slot; after the last zeros for a tensor, None for a number.

    None as well: the draft has no probs or no tokens.
    """
    n = len(draft.tokens)
    if draft.probs is None or n == 0:
        return None
    if isinstance(slot, int):
        return draft.probs[slot] if slot < n else None
    return torch.where(slot < n, row(draft.probs, slot.clamp(max=n - 1)), 0.0)

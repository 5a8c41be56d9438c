"""Variants of `sps` for chains: a token passes by its ratio q / p, or at a given rate.

`rejection` (Leviathan et al. 2023, appendix A.2) proposes one token, and a plain draw from q takes
its place: q / M + (1 - 1 / M) q = q. `lenient` (appendix A.5) keeps tokens where q is only near p;
the paper leaves open what is drawn after a rejection: here the residual of `sps`, with which no
token comes more often than q / l. `ensemble` is `sps` towards a mixture of target and draft, as
transformers' `assistant_ensemble_weight`. `synthetic` keeps tokens at a given rate.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Guarantee, Noise
from spsbench.methods.verifiers.sps import by_ratio, chain_probs, ratios
from spsbench.methods.verifiers.walk_down import (
    CHAINS,
    SAMPLED_CHAINS,
    Tested,
    WalkDown,
    drawn_from,
    row_at,
    uniforms,
)
from spsbench.plugins import INSIDE, SHARE


@dataclass(frozen=True)
class Rejection(WalkDown):
    """A verifier that keeps x with q / (M p), M = max q / p, and draws from q otherwise."""

    accepts = SAMPLED_CHAINS

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        """Return which tokens pass with q / (M p), none without probs; and a draw from q's row."""
        passed = (u := uniforms(draft, q, noise)) < 0
        if len(u) and draft.probs is not None:
            # A token without mass in q and p is 0 / 0; one that only q has makes M infinite.
            greatest = (q[:-1] / draft.probs).nan_to_num(0.0, posinf=torch.inf).amax(-1)  # [N] M
            passed = u < ratios(draft, q) / greatest
        return (passed, drawn_from(lambda end: row_at(q, end), noise))


@dataclass(frozen=True)
class Lenient(WalkDown):
    """A verifier that keeps x with min(1, q / (l p)) and draws from (q - p)+ after a rejection.

    A drafted slot's probs are min(p, q / l) + (1 - sum min(p, q / l)) (q - p)+ / sum (q - p)+, at
    most q / l; that of the bonus token is q. `l` 1 is `sps`. At temperature 0 x passes where its
    probability at temperature 1 is at least l times the greatest, else the likeliest token comes.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = SAMPLED_CHAINS

    ranges: ClassVar = {"l": (INSIDE[0], 1)}

    l: float = 0.5  # noqa: E741 - the paper's letter

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        return by_ratio(draft, q, noise, self.l)

    def relax(self, draft: Draft, q: Tensor, sure: Tensor) -> Tensor:
        """Return `q` [N+1, V], one-hot in rows whose drafted token reaches l times the peak.

        `sure` [N+1, V], the target's probs at temperature 1, has the peaks. Where `l` is 1, `q`
        itself is returned.
        """
        if self.l == 1:
            return q
        at = draft.tokens[:, None]
        rows = sure[: len(at)]
        near = rows.gather(1, at) >= self.l * rows.amax(-1, keepdim=True)  # [N, 1]
        drafted = torch.zeros_like(rows).scatter_(1, at, 1.0)
        return torch.cat([torch.where(near, drafted.to(q.dtype), q[: len(at)]), q[len(at) :]])


@dataclass(frozen=True)
class Ensemble(WalkDown):
    """A verifier that runs `sps` with the target m = w p + (1 - w) q wherever there is a p.

    A drafted slot's probs are m, so its total variation from q is w TV(p, q). The bonus token has
    no p and comes from q: its frequency depends on K, and so does the distribution of a text. `w`
    0 is `sps`, 1 keeps every draft.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = SAMPLED_CHAINS

    ranges: ClassVar = {"w": SHARE}

    w: float = 0.3

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        mixed = self.w * chain_probs(draft, q)[:-1] + (1 - self.w) * q[:-1]
        return by_ratio(draft, torch.cat([mixed, q[-1:]]), noise)


@dataclass(frozen=True)
class Synthetic(WalkDown):
    """A verifier that keeps each draft token with probability `alpha`: for timing only.

    The final token is the likeliest; the output is meaningless.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = CHAINS

    ranges: ClassVar = {"alpha": SHARE}

    alpha: float = 0.8

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        passed = uniforms(draft, q, noise) < self.alpha
        return (passed, lambda end: row_at(q, end).argmax())

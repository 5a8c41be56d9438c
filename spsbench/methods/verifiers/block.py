"""Block verification (Sun et al. 2024, arXiv 2403.10444, Algorithm 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, sample
from spsbench.loop.types import Draft, Noise, Purpose, Verdict
from spsbench.methods.verifiers.sps import ratios, slot_probs
from spsbench.methods.verifiers.tree_rejection import excesses
from spsbench.methods.verifiers.walk_down import SAMPLED_CHAINS, Accepting, uniforms


@dataclass(frozen=True)
class Block(Accepting):
    """A verifier that tests prefixes jointly and keeps the longest: never fewer tokens than sps.

    Prefix i is tested by ACCEPT's uniform i - 1. Its weight is the paper's p_i: how much of it may
    be kept. The chance to keep it is h_i: exactly that prefix rather than a shorter one, given that
    no longer one is kept.
    """

    accepts = SAMPLED_CHAINS

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Keep the longest prefix that passes, then draw from what is left after it."""
        n, u = len(draft.tokens), uniforms(draft, q, noise)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        weight = prefix_weights(ratios(draft, q).nan_to_num(0.0))
        passed = u < keep_chances(draft, q, weight)  # [N]
        lengths = torch.arange(1, n + 1, device=q.device)
        a = torch.cat([lengths.new_zeros(1), lengths.where(passed, 0)]).amax()
        token = sample(residual(row(weight, a) * row(q, a), slot_probs(draft, a)), last)
        return Verdict((lengths - 1).where(lengths <= a, -1), token, torch.full_like(a, -1))


def prefix_weights(ratio: Tensor) -> Tensor:
    """Return [N + 1], the weight of each prefix, from the `ratio` [N] q / p of each token."""
    weights = [ratio.new_ones(())]
    for i in range(len(ratio)):
        weights.append((weights[-1] * ratio[i]).clamp(max=1.0))
    return torch.stack(weights)


def keep_chances(draft: Draft, q: Tensor, weight: Tensor) -> Tensor:
    """Return [N], the chance to keep each prefix of 1 to N tokens, given that no longer one is.

    `weight` [N + 1] is that of `prefix_weights`, and `q` [N + 1, V] has the target's probs.
    """
    chance = weight[1:].clone()  # nothing was drafted after the last
    if len(chance) > 1 and draft.probs is not None:
        before = chance[:-1]
        excess = excesses(before, q[1:-1], draft.probs[1:])  # [N - 1] S_i
        room = excess + (1 - before)
        chance[:-1] = torch.where(room > 0, excess / room, 1.0)
    return chance

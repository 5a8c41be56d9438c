"""Block verification (Sun et al. 2024, arXiv 2403.10444, Algorithm 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import at_hand, residual, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.sps import (
    chain_law,
    law_of,
    ratios,
    refuses_unless_sampled_chain,
)
from spsbench.methods.verifiers.tree_rejection import excesses
from spsbench.methods.verifiers.tree_tables import shape_of, verdict_at

Laws = Callable[[int], tuple[Tensor, Tensor | None]]
"""A slot -> q and p there, both [V]; no p after the last token."""


@dataclass(frozen=True)
class Block:
    """A verifier that tests prefixes jointly and keeps the longest: never fewer tokens than sps."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Refuse all drafts but sampled chains: it divides by the law of each token."""
        return refuses_unless_sampled_chain("block", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a chain of N tokens, `q` [N+1, V]; prefix i is tested by ACCEPT's uniform i - 1.

        weight[i] is the paper's p_i: how much of the prefix of length i may be kept. h[i] is the
        chance to keep exactly that prefix rather than a shorter one, given no longer one is kept.
        """
        n = len(draft.tokens)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        ratio = ratios(draft, q).nan_to_num(0.0)
        if (seen := at_hand(u)) is not None:
            judged = Prefixes(ratio.tolist(), lambda slot: (q[slot], chain_law(draft, slot)))
            kept, left = judged.longest(seen)
            return verdict_at(shape_of(draft), kept, sample(left, last), -1)

        slots = torch.arange(n, device=q.device)
        weights = [q.new_ones(())]
        for i in range(n):
            weights.append((weights[-1] * ratio[i]).clamp(max=1.0))
        weight = torch.stack(weights)  # [N + 1]

        h = weight.clone()  # [N + 1]; nothing was drafted after the last
        if n > 1 and draft.probs is not None:
            before = weight[1:n]
            excess = excesses(before, q[1:n], draft.probs[1:])  # [N - 1] S_i
            room = excess + (1 - before)
            h[1:n] = torch.where(room > 0, excess / room, 1.0)
        passed = torch.cat([h[:1] >= 0, u < h[1:]])  # [N + 1]; the empty prefix passes
        a = torch.where(passed, torch.arange(n + 1, device=q.device), 0).amax()
        token = sample(residual(row(weight, a) * row(q, a), law_of(draft, a)), last)
        return Verdict(slots.where(slots < a, -1), token, torch.full_like(a, -1))


class Prefixes:
    """The prefixes of a chain, tested from the longest down."""

    def __init__(self, ratio: Sequence[float], laws: Laws) -> None:
        """Store the `ratio` [N] of q / p of each token, and `laws`, the function to both laws."""
        self.laws = laws
        self.weight = list(accumulate(ratio, lambda w, x: min(1.0, w * x), initial=1.0))  # [N + 1]

    def longest(self, u: Sequence[float]) -> tuple[int, Tensor]:
        """Return the length of the kept prefix, and the weights [V] of the next token."""
        a = len(u)
        while a > 0 and not self.passes(a, u[a - 1]):
            a -= 1
        q, p = self.laws(a)
        return a, q if p is None else residual(self.weight[a] * q, p)

    def passes(self, i: int, u: float) -> bool:
        """Return whether u < h_i. h is at most the weight: most tests need no sum over laws."""
        weight = self.weight[i]
        if not u < weight:
            return False
        q, p = self.laws(i)
        if p is None:  # nothing was drafted after the last
            return True
        excess = -float(torch.sub(p, q, alpha=weight).clamp_(max=0).sum())  # S_i
        room = excess + (1 - weight)
        return u < excess / room if room > 0 else True

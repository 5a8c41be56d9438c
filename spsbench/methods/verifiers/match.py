"""One-sample match: the target draws its own token first, and a draft is kept while it agrees.

Exact for any draft that did not see this noise, because the output *is* the target's own draw:
beams, look-ups, pruned samples, a person's guess. On a mismatch the drawn token is the output;
drawing again would be biased. Section 3 of Leviathan et al. 2023 compares it with rejection
sampling.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import on_host, row, sample
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.methods.verifiers.tree_tables import (
    path_to,
    shape_of,
    tables,
    verdict_at,
    walked_down,
)


@dataclass(frozen=True)
class Match(Verifier):
    """A verifier that draws the target's token at each node and descends while a child is equal."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify with `q` [N+1, V]; the token after row i uses PLAIN's uniform i."""
        n = len(draft.tokens)
        u = noise.uniform(Purpose.PLAIN, n + 1)
        if q.device.type == "cpu" and on_host(u) is not None:
            return walked(draft, q, u)
        slots = torch.arange(n, device=q.device)
        targets = sample(q, u)  # [N + 1] the target's own tokens
        if draft.parents is None:
            a = (targets[:-1] == draft.tokens).long().cumprod(0).sum()
            return Verdict(slots.where(slots < a, -1), row(targets, a), (a + 1).clamp(max=n))
        of_shape = tables(shape_of(draft), q.device)
        end = walked_down(targets[of_shape.above] == draft.tokens, of_shape)
        return Verdict(path_to(end, of_shape), row(targets, end), row(of_shape.tested, end))


def walked(draft: Draft, q: Tensor, u: Tensor) -> Verdict:
    """Verify as `Match` does, with draws only for the rows on the walk."""
    shape, tokens = shape_of(draft), draft.tokens.tolist()
    at: int | None = 0
    while at is not None:
        end, token = at, sample(q[at], u[at])
        drawn = int(token)
        at = next((node + 1 for node in shape.children[end] if tokens[node] == drawn), None)
    tested = len(shape.path(end)) + bool(shape.children[end])
    return verdict_at(shape, end, token, tested)

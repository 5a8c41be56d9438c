"""k-sequential selection (SpecTr, Sun et al. 2023, arXiv 2310.15141).

Of k tokens drawn independently from p, the first that passes is kept, each x with the chance
min(1, q(x) / (rho p(x))) whatever became of those before it. With beta = sum min(p, q / rho) the
number rho is the smallest with 1 - (1 - beta)^k <= rho beta; any other with this is exact too. When
all were refused, q - min(p, q / rho) (1 - (1 - beta)^k) / beta is left.

Chains that begin alike stay together: after a token was kept, all that was drawn below equal ones
is tried, which is how the paper goes through k chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import at_hand, pieces, residual, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.sps import WHENCE
from spsbench.methods.verifiers.tree_rejection import taken
from spsbench.methods.verifiers.tree_tables import (
    Shape,
    numbers,
    path_to,
    shape_of,
    tables,
    verdict_at,
)

STEPS = 6  # towards rho from above: each is a number that is exact, and smaller


@dataclass(frozen=True)
class SpecTr:
    """A verifier that keeps the first sibling that passes, else draws from the leftover of q."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Refuse siblings that were not drawn independently from one law."""
        return refuses_unless_independent("spectr", drawn)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a tree of N nodes, `q` [N+1, V]; the test of node i uses ACCEPT's uniform i."""
        shape = shape_of(draft)
        u = send(noise.uniform(Purpose.ACCEPT, len(draft.tokens)), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        if (seen := at_hand(u)) is not None:
            at, left, tested = walked(draft, q, shape, seen)
            return verdict_at(shape, at, sample(left, last), tested)
        known = tables(shape, q.device)
        if draft.probs is None or not len(draft.tokens):  # without laws nothing was drafted
            return Verdict(draft.tokens, sample(q[0], last), known.tested[0])
        p, above = draft.probs, known.above

        alike = same_text(draft.tokens, known.paths)  # [N + 1, N + 1] rows
        below = alike[:, above]  # [N + 1, N] what was drawn after the text of each row
        k = below.sum(-1)  # [N + 1]
        rho = rhos(draft, q, shape, k)  # [N + 1]

        own = q[above, draft.tokens] / p.gather(1, draft.tokens[:, None])[:, 0]
        passed = u < own / rho[above]  # NaN rejects
        together = below[above]  # [N, N]
        first = passed & ~(together.tril(-1) & passed).any(-1)
        won = (alike[1:, 1:] & first).any(-1)  # the text of a node ends with the one that was kept
        reached = first & (won | ~known.ancestors).all(-1)
        rows = torch.arange(1, len(u) + 1, device=q.device)
        deep = known.ancestors.sum(-1) * (len(u) + 1) + rows  # the deepest that was reached
        end = torch.cat([rows.new_zeros(1), deep.where(reached, 0)]).amax() % (len(u) + 1)

        drawn = row(below, end)
        law = row(p, drawn.long().argmax())  # any of those drawn there has it
        ratio = row(rho, row(above, drawn.long().argmax()))
        some = torch.minimum(law, row(q, end) / ratio)
        left = residual(row(q, end), some * tries(some.sum(), row(k, end)))
        token = sample(torch.where(row(k, end) > 0, left, row(q, end)), last)
        deepest = row(known.ancestors.sum(-1), (end - 1).clamp(min=0)).where(end > 0, 0)
        return Verdict(path_to(end, known), token, deepest + (row(k, end) > 0))


def walked(draft: Draft, q: Tensor, shape: Shape, u: Sequence[float]) -> tuple[int, Tensor, int]:
    """Return the walk's last row, the weights [V] of the next token, and the tested depths."""
    tokens: list[int] = draft.tokens.tolist()
    alike, depth = [0], 0  # rows after the same text
    while True:
        at, own = alike[0], q[alike[0]]
        drawn = sorted(node for each in alike for node in shape.children[each])
        if draft.probs is None or not drawn:
            return at, own, depth
        depth += 1
        law, k = draft.probs[drawn[0]], len(drawn)  # any of those drawn there has it
        rho = rho_of(law, own, k)
        for node in drawn:
            place = shape.parents[node] + 1, tokens[node]
            if u[node] * float(draft.probs[node, tokens[node]]) * rho < float(q[place]):
                alike = [other + 1 for other in drawn if tokens[other] == tokens[node]]
                alike.sort(key=(node + 1).__ne__)  # the one that was kept is the first
                break
        else:
            some = torch.minimum(law, own / rho)
            left = residual(own, some * tries(some.sum(), some.new_tensor(k)))
            return at, left, depth


def rho_of(law: Tensor, own: Tensor, k: int) -> float:
    """Return rho for `k` tokens drawn from `law` [V] where the target's law is `own` [V]."""
    rho = float(k)  # of k itself the condition holds, and so it does of what follows
    if k > 1:
        held = torch.empty_like(own)
        for _ in range(STEPS):
            torch.minimum(law, torch.div(own, rho, out=held), out=held)
            rho = float(tries(held.sum(), held.new_tensor(k)))
    return rho


def rhos(draft: Draft, q: Tensor, shape: Shape, k: Tensor) -> Tensor:
    """Return [N + 1] rho after each row, where `k` [N + 1] tokens were drawn; 1 for at most one."""
    found = torch.ones_like(q[:, 0])
    counts = k.tolist() if k.device.type == "cpu" else None  # elsewhere looking means waiting
    rows = [at for at, nodes in enumerate(shape.children) if nodes]
    rows = [at for at in rows if counts is None or counts[at] > 1]
    for some in pieces(len(rows), q):
        here = rows[some]
        places = send(numbers(here), q.device)
        own = taken(q, here)
        law = taken(draft.probs, [shape.children[at][0] for at in here])  # type: ignore[arg-type]
        many = k.index_select(0, places)
        ratio = many.to(q.dtype)  # of k itself the condition holds, and so it does of what follows
        for _ in range(STEPS):
            ratio = tries(torch.minimum(law, own / ratio[:, None]).sum(-1), many)
        found.index_copy_(0, places, ratio)
    return found


def tries(beta: Tensor, k: Tensor) -> Tensor:
    """Return (1 - (1 - beta)^k) / beta: the expected number of tries up to the first kept of k."""
    chance = beta.clamp(min=torch.finfo(beta.dtype).tiny, max=1.0)
    return -torch.expm1(k * torch.log1p(-chance)) / chance


def same_text(tokens: Tensor, paths: Tensor) -> Tensor:
    """Return [N + 1, N + 1] bool: rows after the same text; `paths` as in `Tables`."""
    texts = tokens[paths.clamp(min=0)].where(paths >= 0, -1)  # [N + 1, N]
    return (texts[:, None] == texts).all(-1)


def refuses_unless_independent(name: str, drawn: Drawn) -> str | None:
    """Return a verifier's reason against siblings that are not independent, or None."""
    if drawn is Drawn.IID:
        return None
    return (
        f"verifier {name} counts on siblings drawn independently from one law, but the drafter's "
        f"tokens come {WHENCE[drawn]}: use verifier "
        f"{'match' if drawn is Drawn.POINT else 'traversal'}"
    )

"""k-sequential selection (SpecTr, Sun et al. 2023, arXiv 2310.15141).

Of k tokens drawn independently from p, the first that passes is kept, each x with the chance
min(1, q(x) / (rho p(x))) whatever became of those before it. With beta = sum min(p, q / rho) the
number rho is the smallest with 1 - (1 - beta)^k <= rho beta; any other with this is exact too. When
all were refused, q - min(p, q / rho) (1 - (1 - beta)^k) / beta is left.

Chains that begin alike stay together: after a token was kept, all that was drawn below equal ones
is tried, which is how the paper goes through k chains.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, row_slices, sample, send
from spsbench.loop.tree import to_int64
from spsbench.loop.types import Draft, Drawn, Noise, Purpose, Verdict
from spsbench.methods.verifiers.tree_rejection import take_rows
from spsbench.methods.verifiers.walk_down import Accepting, uniforms

STEPS = 6  # towards rho from above: each is a number that is exact, and smaller


@dataclass(frozen=True)
class SpecTr(Accepting):
    """A verifier that keeps the first sibling that passes, else draws from the leftover of q.

    The test of node i uses ACCEPT's uniform i.
    """

    accepts = frozenset({(Drawn.IID, False), (Drawn.IID, True)})

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Keep the path of first siblings that pass, then draw from the leftover after it."""
        u = uniforms(draft, q, noise)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        tables = draft.tree.tables(q.device)
        if draft.probs is None or not len(draft.tokens):  # nothing was drafted
            return Verdict(draft.tokens, sample(q[0], last), tables.tested[0])
        p, above = draft.probs, tables.above

        alike = same_text(draft.tokens, tables.paths)  # [N + 1, N + 1] rows
        below = alike[:, above]  # [N + 1, N] what was drawn after the text of each row
        k = below.sum(-1)  # [N + 1]
        rho = rhos(draft, q, k)  # [N + 1]

        ratio = q[above, draft.tokens] / p.gather(1, draft.tokens[:, None])[:, 0]
        passed = u < ratio / rho[above]  # NaN rejects
        together = below[above]  # [N, N]
        first = passed & ~(together.tril(-1) & passed).any(-1)
        won = (alike[1:, 1:] & first).any(-1)  # the text of a node ends with the one that was kept
        reached = first & (won | ~tables.ancestors).all(-1)
        rows = torch.arange(1, len(u) + 1, device=q.device)
        deep = tables.ancestors.sum(-1) * (len(u) + 1) + rows  # the deepest that was reached
        end = torch.cat([rows.new_zeros(1), deep.where(reached, 0)]).amax() % (len(u) + 1)

        drawn = row(below, end)
        probs = row(p, drawn.long().argmax())  # any of those drawn there has it
        scale = row(rho, row(above, drawn.long().argmax()))
        some = torch.minimum(probs, row(q, end) / scale)
        left = residual(row(q, end), some * tries(some.sum(), row(k, end)))
        token = sample(torch.where(row(k, end) > 0, left, row(q, end)), last)
        deepest = row(tables.ancestors.sum(-1), (end - 1).clamp(min=0)).where(end > 0, 0)
        return Verdict(tables.path_to(end), token, deepest + (row(k, end) > 0))


def rhos(draft: Draft, q: Tensor, k: Tensor) -> Tensor:
    """Return [N + 1] rho, by which tests divide q / p, after each row.

    `k` [N + 1] is how many tokens were drawn after a row, or after one of the same text. rho is 1
    where it is at most 1, or the row has no child.
    """
    rho = torch.ones_like(q[:, 0])
    counts = k.tolist() if k.device.type == "cpu" else None  # elsewhere looking means waiting
    rows = [at for at, nodes in enumerate(draft.tree.children) if nodes]
    rows = [at for at in rows if counts is None or counts[at] > 1]
    for some in row_slices(len(rows), q):
        here = rows[some]
        places = send(to_int64(here), q.device)
        target = take_rows(q, here)
        probs = take_rows(draft.probs, [draft.tree.children[i][0] for i in here])  # type: ignore[arg-type]
        many = k.index_select(0, places)
        ratio = many.to(q.dtype)  # k itself meets the condition, and so does what follows
        for _ in range(STEPS):
            ratio = tries(torch.minimum(probs, target / ratio[:, None]).sum(-1), many)
        rho.index_copy_(0, places, ratio)
    return rho


def tries(beta: Tensor, k: Tensor) -> Tensor:
    """Return (1 - (1 - beta)^k) / beta: the expected number of tries up to the first kept of k."""
    chance = beta.clamp(min=torch.finfo(beta.dtype).tiny, max=1.0)
    return -torch.expm1(k * torch.log1p(-chance)) / chance


def same_text(tokens: Tensor, paths: Tensor) -> Tensor:
    """Return [N + 1, N + 1] bool: rows after the same text; `paths` as in `Tables`."""
    texts = tokens[paths.clamp(min=0)].where(paths >= 0, -1)  # [N + 1, N]
    return (texts[:, None] == texts).all(-1)

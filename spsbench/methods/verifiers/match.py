"""One-sample match: the target draws its own token first, and a draft is kept while it agrees.

Exact for any draft that did not see this noise, because the output *is* the target's own draw:
beams, look-ups, pruned samples, a person's guess. On a mismatch the drawn token is the output;
drawing again would be biased. Section 3 of Leviathan et al. 2023 compares it with rejection
sampling.
"""

from dataclasses import dataclass

from torch import Tensor

from spsbench.loop.sampling import host_numbers, sample
from spsbench.loop.types import Draft, Noise, Purpose, Verdict
from spsbench.methods.verifiers.walk_down import Tested, WalkDown, row_at, verdict_at


@dataclass(frozen=True)
class Match(WalkDown):
    """A verifier that draws the target's token at each node and descends while a child is equal.

    The token after row i uses PLAIN's uniform i.
    """

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        u = noise.uniform(Purpose.PLAIN, len(q))
        if q.device.type != "cpu" or host_numbers(u) is None:
            return super().__call__(draft, q, noise)
        tree, tokens = draft.tree, draft.tokens.tolist()
        at: int | None = 0
        while at is not None:  # on the host only the rows on the walk are drawn from
            end, token = at, sample(q[at], u[at])
            drawn = int(token)
            at = next((node + 1 for node in tree.children[end] if tokens[node] == drawn), None)
        return verdict_at(tree, end, token)

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        """Return which nodes equal the target's draw after their parents, and that draw by row."""
        targets = sample(q, noise.uniform(Purpose.PLAIN, len(q)))  # [N + 1]
        above = targets[:-1]
        if draft.parents is not None:
            above = targets[draft.tree.tables(q.device).above]
        return (above == draft.tokens, lambda end: row_at(targets, end))

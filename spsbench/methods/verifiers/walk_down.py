"""The walk down a draft: node after node is tested, and the last token is drawn where it ends.

Rules of this kind differ in which nodes pass, and in what the last token is drawn from; what they
refuse follows from the drafts that they accept.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import host_numbers, row, sample, send
from spsbench.loop.tree import Tree, to_int64
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier

Accepted = frozenset[tuple[Drawn, bool]]
"""How drafted tokens may be drawn, and whether drafts may branch."""

ALL: Accepted = frozenset((drawn, tree) for drawn in Drawn for tree in (False, True))
CHAINS: Accepted = frozenset((drawn, False) for drawn in Drawn)
SAMPLED_CHAINS: Accepted = frozenset({(Drawn.IID, False)})
WHENCE = {Drawn.POINT: "deterministically and have none", Drawn.DISTINCT: "without replacement"}

Row = Tensor | int
"""A row of q: a [] tensor, or a number where that costs no wait."""

Tested = tuple[Tensor, Callable[[Row], Tensor]]
"""`passed` [N] bool of nodes, each given that its parent is kept, and `last`: the row of the last
kept node -> the [] token after it."""


class Accepting(Verifier):
    """A rule that states which drafts it accepts; it has the name of its class."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT
    accepts: ClassVar[Accepted] = ALL

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Return why drafts drawn so, chains or trees, are not verified; None: they are."""
        if (drawn, tree) in self.accepts:
            return None
        name = type(self).__name__.lower()
        if tree and not any(branching for _, branching in self.accepts):
            rule = "match" if drawn is Drawn.POINT else "traversal"
            return (
                f"verifier {name} tests one chain, but the drafter draws trees: use verifier {rule}"
            )
        exact = "traversal" if tree and drawn is not Drawn.POINT else "match"
        return (
            f"verifier {name} divides by the distribution of each token, but the drafter's "
            f"tokens come {WHENCE[drawn]}: use verifier {exact}, which is exact for them"
        )


class WalkDown(Accepting):
    """A rule that keeps a node if it passes and its parent is kept: of siblings the first one."""

    @abstractmethod
    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        """Test the N nodes of a draft with `q` [N+1, V]; node i uses ACCEPT's uniform i."""

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Return the path of kept nodes, the token after it, and the number of tested nodes."""
        passed, last = self.test(draft, q, noise)
        if draft.parents is None:
            slots = torch.arange(len(passed), device=q.device)
            end = passed.long().cumprod(0).sum()  # the accepted prefix
            path, tested = slots.where(slots < end, -1), (end + 1).clamp(max=len(passed))
            read = host_numbers(end[None])
            return Verdict(path, last(end if read is None else int(read[0])), tested)
        tables = draft.tree.tables(q.device)
        end = tables.walked_down(passed)
        return Verdict(tables.path_to(end), last(end), row(tables.tested, end))


def uniforms(draft: Draft, q: Tensor, noise: Noise) -> Tensor:
    """Return [N] the uniforms that the tests of nodes use."""
    return send(noise.uniform(Purpose.ACCEPT, len(draft.tokens)), q.device)


def drawn_from(leftover: Callable[[Row], Tensor], noise: Noise) -> Callable[[Row], Tensor]:
    """Return the draw of the last token from the weights [V] that are left after a row."""
    u = noise.uniform(Purpose.FINAL, 1)[0]
    return lambda end: sample(leftover(end), u)


def row_at(x: Tensor, end: Row) -> Tensor:
    """Return `x[end]` without a host read: a view where the number is there."""
    return x[end] if isinstance(end, int) else row(x, end)


def verdict_at(tree: Tree, end: int, token: Tensor) -> Verdict:
    """Return the verdict of a host's walk to row `end`: path padded by -1, [] `token`, tested."""
    path = tree.path(end)
    padded = path + [-1] * (len(tree.parents) - len(path))
    return Verdict(to_int64(padded), token, torch.tensor(len(path) + bool(tree.children[end])))

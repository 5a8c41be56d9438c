"""Greedy multi-path block verification (GBV, arXiv 2602.16961).

Of several paths that were drawn independently, one is chosen by the laws alone: at each place the
token with the greatest q / p of those drawn there, of equal ones that with the greatest id. The law
of the chosen path is known (`chosen`), and block verification is exact for any law that a chain was
really drawn from: so the chosen path is judged by `block`, against its own law.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spsbench.loop.sampling import row, sample
from spsbench.loop.transfer import at_hand, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.block import Block, Prefixes
from spsbench.methods.verifiers.chosen import ChosenPath, chosen_laws
from spsbench.methods.verifiers.shape import (
    KEPT,
    Shape,
    numbers,
    shape_of,
    tables,
    verdict_at,
)
from spsbench.methods.verifiers.spectr import refuses_unless_independent


@dataclass(frozen=True)
class Gbv:
    """Choose the path of the greatest q / p, and verify it as a block against its own law."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """The law of the chosen path is that of independent ones."""
        return refuses_unless_independent("gbv", drawn)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Tree of N nodes, `q` [N+1, V]; depth i of the chosen path uses ACCEPT's uniform i - 1.

        Made for chains. Of a tree whose nodes of one depth have more children here than there it
        takes as many as all have: what it uses may not depend on what was drawn.
        """
        if draft.probs is None or not len(draft.tokens):  # without laws nothing was drafted
            return Block()(draft, q, noise)
        shape = shape_of(draft)
        levels = even(shape)
        branching = [level.branching for level in levels]
        u = send(noise.uniform(Purpose.ACCEPT, len(levels)), q.device)
        if (seen := at_hand(u)) is not None:
            nodes = best_path(draft, q, shape)
            rows = [0, *(node + 1 for node in nodes)]
            laws = [q[at] for at in rows], [draft.probs[node] for node in nodes]
            path = ChosenPath(*laws, draft.tokens[nodes].tolist(), branching)
            a, left = Prefixes(path.ratios(), path.laws).longest(seen)
            token = sample(left, noise.uniform(Purpose.FINAL, 1)[0])
            return verdict_at(shape, rows[a], token, -1)

        known = tables(shape, q.device)
        end = chosen(draft, q, shape, known.above)
        on = row(known.paths, end)  # [N]
        used = on[: len(levels)]
        own = q[torch.cat([known.above[used], end[None]])]
        law, tokens = draft.probs[used], draft.tokens[used]
        if max(branching) > 1:  # else there was nothing to choose from
            law = chosen_laws(own[:-1], law, tokens, branching)
        ruled = Block()(Draft(tokens, law), own, noise)
        kept = torch.cat([ruled.path, ruled.path.new_full((len(on) - len(used),), -1)])
        return Verdict(on.where(kept >= 0, -1), ruled.token, ruled.tested)


class Level(NamedTuple):
    """One depth of what is used of a tree."""

    branching: int  # children that each node above has here
    nodes: tuple[int, ...]  # [n]
    parents: tuple[int, ...]  # [n] places in the level above


@lru_cache(KEPT)
def even(shape: Shape) -> tuple[Level, ...]:
    """The greatest part of a tree whose nodes of one depth have the same number of children."""
    rows, levels = [0], list[Level]()
    while branching := min(len(shape.children[at]) for at in rows):
        nodes = [node for at in rows for node in shape.children[at][:branching]]
        parents = [place for place in range(len(rows)) for _ in range(branching)]
        levels.append(Level(branching, tuple(nodes), tuple(parents)))
        rows = [node + 1 for node in nodes]
    return tuple(levels)


def best_path(draft: Draft, q: Tensor, shape: Shape) -> list[int]:
    """[D] the nodes of the chosen path, on the host; equal paths are one."""
    above = numbers([parent + 1 for parent in shape.parents])
    drawn = draft.probs.gather(1, draft.tokens[:, None])[:, 0]  # type: ignore[union-attr]
    ratio = (q[above, draft.tokens] / drawn).nan_to_num(0.0).tolist()
    tokens: list[int] = draft.tokens.tolist()
    alive, levels = {0}, even(shape)  # places in the level above
    for level in levels:
        here = [at for at, parent in enumerate(level.parents) if parent in alive]
        token = max((ratio[level.nodes[at]], tokens[level.nodes[at]]) for at in here)[1]
        alive = {at for at in here if tokens[level.nodes[at]] == token}
    return shape.path(levels[-1].nodes[min(alive)] + 1)


def chosen(draft: Draft, q: Tensor, shape: Shape, above: Tensor) -> Tensor:
    """[] the row at the end of the chosen path, on the device."""
    tokens, probs = draft.tokens, draft.probs
    alive = torch.ones(1, dtype=torch.bool, device=q.device)
    levels = sent(shape, q.device)
    for nodes, parents in levels:
        x = tokens[nodes]
        alive = alive[parents]
        ratio = (q[above[nodes], x] / probs[nodes, x]).nan_to_num(0.0)  # type: ignore[index]
        best = ratio.where(alive, -1.0).amax()
        token = x.where(alive & (ratio == best), -1).amax()
        alive = alive & (x == token)
    return row(levels[-1][0], alive.long().argmax()) + 1


@lru_cache(KEPT)
def sent(shape: Shape, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """The nodes of each level and the places of their parents, on a device."""
    both = ((level.nodes, level.parents) for level in even(shape))
    return tuple((send(numbers(a), device), send(numbers(b), device)) for a, b in both)

"""A head under a constraint: its drafts are drawn from the tokens that the grammar allows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.closing import Path
from spsbench.loop.constraint import Constraint
from spsbench.loop.sampling import send
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.heads.reader import HiddenReader


class MaskedFrontier(Frontier):
    """The frontier of a head whose logits are -inf for tokens that a constraint does not allow.

    A row in which the head knows no allowed token, or behind a refused one, stays as it is: its law
    is reported as it is drawn from, so the text keeps its law. Nodes are fed pass by pass: a
    roll-out draws without masks.
    """

    def __init__(self, frontier: HiddenReader, constraint: Constraint) -> None:
        self.limit, self.network, self.layers = None, frontier.network, frontier.layers
        self._inner, self._constraint = frontier, constraint
        self._paths: dict[int, Path] = {}  # node -> the output that ends with it; -1 = the text

    @property
    def narrow(self) -> bool:
        """Return whether logits are those of the head's own vocabulary."""
        return self._inner.narrow

    @narrow.setter
    def narrow(self, narrow: bool) -> None:
        self._inner.narrow = narrow

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._inner.begin(prompt, prefill)

    def settle(self, context: Context) -> None:
        self._inner.settle(context)

    def put_off(self, context: Context) -> None:
        """Keep what the last round brought for the next `settle`."""
        self._inner.put_off(context)

    def room(self, context: Context) -> int | None:
        return self._inner.room(context)

    def depth(self, context: Context, k: int) -> int:
        return self._inner.depth(context, k)

    def root(self, context: Context) -> Tensor:
        logits: Tensor = self._inner.root(context)
        output = tuple(context.tokens[self._constraint.start :])
        self._paths = {-1: output}
        return self._masked(logits, [output])

    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        logits: Tensor = self._inner.feed(tokens, nodes, parents)
        for node, parent, token in zip(nodes, parents, tokens.tolist(), strict=True):
            self._paths[node] = (*self._paths[parent], token)
        return self._masked(logits, [self._paths[node] for node in nodes])

    def renumber(self, order: Sequence[int]) -> None:
        self._inner.renumber(order)

    def take_back(self, count: int) -> None:
        """Refuse: nothing is drawn ahead."""
        raise RuntimeError("nodes to take back: expected none, since none is drawn ahead")

    def spread(self, rows: Tensor, fill: float) -> Tensor:
        """Spread [n, Vd] rows to [n, V]: `fill` for tokens the head does not know."""
        return self._inner.spread(rows, fill)

    def _masked(self, logits: Tensor, outputs: Sequence[Path]) -> Tensor:
        ids: Any = self.network.ids if self.narrow else None
        free = torch.ones(logits.shape[1], dtype=torch.bool)
        rows = []
        for output in outputs:
            mask = self._constraint.mask(output)
            if mask is not None:
                mask = mask[: len(free)] if ids is None else mask[ids.cpu()]
            rows.append(free if mask is None or not bool(mask.any()) else mask)
        return logits.masked_fill(~send(torch.stack(rows), logits.device), -torch.inf)

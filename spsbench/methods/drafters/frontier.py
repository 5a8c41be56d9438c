"""The cache of a draft model or a head while a draft grows in it: one pass a depth, then rollback.

Drafts grow over it in three ways: as chains (`model`), in a fixed shape (`shaped`), or best first
(`topk`).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from spsbench.loop.constraint import Path
from spsbench.loop.drafter_context import DrafterContext, Plan, Weights
from spsbench.loop.sampling import Warp, send_mask
from spsbench.loop.types import LM, Context, Drafter, Scores


class Frontier:
    """The cache of a draft model while a tree grows in it.

    Only nodes with children are fed, so cache rows and node numbers differ: the frontier maps them.
    Logits are -inf for tokens that the constraint of the text does not allow, and changed by the
    processors of the text; a row in which no known token is left stays as it is. Where it is
    `narrow` they are those of the tokens `known_ids` alone, [n, Vd] in place of [n, V]. Probs are
    reported as they are drawn from.
    """

    limit: int | None
    layers: tuple[int, ...] = ()  # hidden states of the target that it reads
    known_ids: Tensor | None = None  # [Vd] the tokens that it knows; None = all
    narrow = False
    _rows: dict[int, int]  # node of the last draft -> its place among those fed
    _parents: list[int]  # place of each fed node's parent among those fed; -1: the context
    _by_path: Context | None = None  # the round's context, where a row depends on its own path
    _paths: dict[int, Path]  # then: node -> the drafted tokens up to it

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit
        self._forget()

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._forget()
        self.lm.commit(0)
        if self.lm.limit is None or len(prompt) <= self.lm.limit:
            self.lm.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)

    def settle(self, context: Context) -> None:
        """Keep the part of the last tree in the text (`context.last.kept`); drop the rejected rows.

        Call it in rounds without a draft too: one round later `context.last` is of another draft.
        """
        lm, kept = self.lm, [] if context.last is None else list(context.last.kept)
        if self._parents:
            path = [self._rows[node] for node in kept if node in self._rows]  # the last may be new
            lm.commit(lm.length - len(self._parents), path)
            self._forget()
        lm.commit(min(lm.length, len(context.tokens) - 1))

    def defer(self, context: Context) -> None:
        """Bring the cache up to a round without a draft, as `settle` does for one with a draft."""
        self.settle(context)

    def fitting(self, nodes: list[int]) -> list[int]:
        """Return the first of `nodes`, as many as may still be fed within the limit of context."""
        return nodes if self.limit is None else nodes[: max(0, self.limit - self.lm.length)]

    def depth(self, context: Context, k: int) -> int:
        """Return how deep the next draft may be where K is `k`; called before it is drawn."""
        return k

    def root(self, context: Context) -> Tensor:
        """Feed the tokens that the loop has added, and return the [1, V] logits after the text."""
        ruled = context.constraint is not None or context.processors is not None
        self._by_path, self._paths = context if ruled else None, {-1: ()}
        return self._ruled(self._root(context), [-1])

    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Feed some nodes of one depth in one pass, after `root`; return [n, V] logits after each.

        `tokens` [n] are of the nodes, `nodes` their numbers in the draft, and `parents` the numbers
        of their parents, fed before; -1 = the context.
        """
        if self._by_path is not None:
            for node, parent, token in zip(nodes, parents, tokens.tolist(), strict=True):
                self._paths[node] = (*self._paths[parent], token)
        return self._ruled(self._feed(tokens, nodes, parents), nodes)

    def roll_out(
        self, logits: Tensor, u: Tensor, warp: Warp, first: int
    ) -> tuple[Tensor | None, Tensor] | None:
        """Draw and feed n nodes of a chain in one call, each by the pass before it.

        `logits` [1, V] are of the newest pass; tokens are drawn under `warp` by `u` [n] float64 in
        [0, 1), up to rounding; `first` is the number of the first of these nodes. Returns the
        tokens [n] and the logits [n, V] after each; None for the tokens: the logits do not depend
        on them. None alone: nothing was fed, and they are to be fed one by one.
        """
        return None

    def drop_newest(self, count: int) -> None:
        """Forget the newest `count` nodes that `roll_out` fed; it feeds none here."""

    def spread(self, rows: Tensor, fill: float) -> Tensor:
        """Return [n, Vd] rows as [n, V], `fill` for unknown tokens; here, where none is, as is."""
        return rows

    def renumber(self, order: Sequence[int]) -> None:
        """Give fed nodes their numbers in `order`, the returned draft, and forget the others."""
        place = {node: number for number, node in enumerate(order)}
        self._rows = {place[node]: row for node, row in self._rows.items() if node in place}

    def _root(self, context: Context) -> Tensor:
        """Return the [1, V] logits after the text, before constraint and processors."""
        return self.lm.append(torch.tensor(context.tokens[self.lm.length :]), keep=1).logits

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Feed nodes of one depth; return [n, V] logits, before constraint and processors."""
        self._add(nodes, parents)
        return self.lm.append(tokens, keep=len(nodes), parents=torch.tensor(self._parents)).logits

    def _add(self, nodes: Sequence[int], parents: Sequence[int]) -> None:
        """Note `nodes` below `parents` as the rows that are fed next."""
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)

    def _ruled(self, logits: Tensor, nodes: Sequence[int]) -> Tensor:
        """Return [n, V] logits after some nodes under the constraint and the processors, if any.

        Tokens that the constraint forbids get -inf; a row where none would be left stays as it is.
        """
        if self._by_path is None:
            return logits
        context, ids = self._by_path, self.known_ids if self.narrow else None
        paths = [self._paths[node] for node in nodes]
        if (constraint := context.constraint) is not None:
            output = constraint.output(context.tokens)
            mask = constraint.allowed((*output, *path) for path in paths)
            rows = send_mask(mask, logits.device)
            rows = rows[:, : logits.shape[1]] if ids is None else rows.index_select(1, ids)
            logits = logits.masked_fill(~rows & rows.any(-1, keepdim=True), -torch.inf)
        if context.processors is None:
            return logits
        raw = logits if ids is None else self.spread(logits, -torch.inf)
        wide: Tensor = context.processors.rows(raw, context.tokens, paths)
        return wide if ids is None else wide.index_select(1, ids)

    def _forget(self) -> None:
        self._rows, self._parents = {}, []


class ChainFrontier(Frontier):
    """The cache of a draft model that drafts chains: rows need no mask, and kept ones no moves."""

    def settle(self, context: Context) -> None:
        self.lm.commit(min(self.lm.length, len(context.tokens) - 1))

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self.lm.append(tokens, keep=1).logits

    def roll_out(
        self, logits: Tensor, u: Tensor, warp: Warp, first: int
    ) -> tuple[Tensor | None, Tensor] | None:
        """Draw and feed n nodes by the engine's own loop; None: none, or rows depend on paths."""
        roll_out = getattr(self.lm, "roll_out", None)
        if roll_out is None or self._by_path is not None:
            return None
        tokens: tuple[Tensor, Tensor] | None = roll_out(logits, u, warp)
        return tokens

    def drop_newest(self, count: int) -> None:
        self.lm.commit(self.lm.length - count)


class FrontierDrafter(Drafter):
    """A drafter whose drafts grow over a frontier.

    `narrow`: distributions are made, and drawn from, over the known tokens alone.
    """

    def __init__(self, frontier: Frontier, *, narrow: bool = False) -> None:
        self._frontier, self.limit = frontier, frontier.limit
        self.layers = frontier.layers or self.layers  # those of the frontier, or of a subclass
        if narrow:
            frontier.narrow, self.known_ids = True, frontier.known_ids

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._frontier.begin(prompt, prefill)


class Arguments:
    """The arguments of a drafter as fields, declared once: they tell its plan, and make it.

    A dataclass of arguments has `drawn` and `tree`, and `over` a frontier or an `open` of its own.
    """

    weights: ClassVar[Weights] = Weights.MODEL
    uses_target: ClassVar[bool] = False

    @classmethod
    def plan(cls, **arguments: Any) -> Plan:
        """Return the plan for these arguments."""
        drafter: Any = cls(**arguments)
        return Plan(drafter.drawn, drafter.tree, drafter.weights, drafter.uses_target)

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Drafter:
        """Make the drafter over a session with the draft model."""
        return cls(**arguments).over(Frontier(context.session()))

    def over(self, frontier: Frontier) -> Drafter:
        """Make the drafter over a frontier."""
        raise NotImplementedError

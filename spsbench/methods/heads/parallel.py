"""Heads that draft in parallel, or from a small state: one pass over the text a round.

Medusa, blockwise decoding, MLP speculators and block diffusion share this: when a round begins, one
pass over the known text computes all that the round needs. A drafted token then changes a small
state, or nothing at all.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import Warp, send
from spsbench.loop.types import Context
from spsbench.methods.heads.network import Ranking, Rows
from spsbench.methods.heads.reader import HiddenReader


def of_one_text(name: Hashable, call: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Return `call(*rows)`."""
    return call(*rows)


class Around(NamedTuple):
    """The environment of a head network: the target's parts, the cache and the vocabulary."""

    embed: Rows  # [m] tokens -> [m, H], in the network's dtype
    head: Rows  # [m, H] -> [m, V], the target's own
    cache: Cache  # of the head's layers
    rows: Callable[..., Tensor] = of_one_text  # (name, call, *[n, ...] rows) -> call(*rows), made
    # once for the texts of a batch that wait for a call of this name


class ParallelNetwork(Ranking):
    """The base of parallel heads; H its width, Ht the target's, Vd its vocabulary, S its state.

    Attributes:
        deepest: the greatest depth of a draft.
        marginal: the law of a depth depends on no drafted token.
        rolls: states end in logits, and all steps after the first are one pass, ("step", 1), over
            tokens and states.
    """

    deepest: int
    marginal = rolls = False

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, by: Around) -> Tensor:
        """Read n times [m, Ht] hidden states and the [m] next tokens; return the newest [H].

        `past` rows were read before. A head without layers of its own needs the last row only.
        """
        return hidden[0][-1]

    @abstractmethod
    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """Compute what a round needs, once.

        Args:
            newest: [H] as `read` returned it.
            token: [] the pending one, which has no features yet.
            place: the position of that token's row.
            count: the greatest depth that the round may ask for.
        """

    def start(self, seen: Any, token: Tensor, by: Around) -> Tensor:
        """Return [S], the state after the pending token, before the first drafted one."""
        return token.new_empty(0)

    @abstractmethod
    def scores(self, seen: Any, depth: int, states: Tensor, by: Around) -> Tensor:
        """Map [n, S] states after paths of `depth` tokens to [n, Vd] logits of the next."""

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, by: Around) -> Tensor:
        """Advance [n, S] states by the [n] tokens drafted after them."""
        return states


class Marginal(ParallelNetwork):
    """The base of heads whose law of a depth ignores drafted tokens: `look` returns [count, Vd]."""

    marginal = True

    def scores(self, seen: Any, depth: int, states: Tensor, by: Around) -> Tensor:
        row: Tensor = seen[depth]
        return row.expand(len(states), -1)


class ParallelFrontier(HiddenReader):
    """A frontier that grows a draft from one pass: states instead of rows of a cache."""

    def __init__(
        self,
        network: ParallelNetwork,
        target: TargetParts,
        cache: Cache,
        together: Together = alone,
    ) -> None:
        super().__init__(network, target, cache, together)
        self.deepest = network.deepest
        self._by = Around(self._embed, self._their_head, cache, self._over_texts)

    def _forget(self) -> None:
        super()._forget()
        self._seen: Any = None  # the look of this round
        self._states: dict[int, Tensor] = {}  # node -> [S] the state after it, -1 = the text
        self._deep: dict[int, int] = {}  # node -> its depth, from 1

    def depth(self, context: Context, k: int) -> int:
        self._count = super().depth(context, k)
        return self._count

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        newest: Any = self._newest
        token = send(torch.tensor(context.tokens[-1]), self._target.device)
        self._seen = self.network.look(newest, token, self._read, self._count, self._by)
        self._cache.keep(self._read)  # what the look wrote is of this round alone
        self._states = {-1: self.network.start(self._seen, token, self._by)}
        self._deep = {-1: 0}
        return self._scores([-1])

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        before = torch.stack([self._states[parent] for parent in parents])
        depth = self._deep[parents[0]]
        fed = send(tokens, self._target.device)
        states = self.network.step(self._seen, depth, before, fed, self._by)
        self._states.update(zip(nodes, states, strict=True))
        self._deep.update(dict.fromkeys(nodes, depth + 1))
        return self._scores(nodes)

    @torch.inference_mode()
    def roll_out(self, u: Tensor, warp: Warp) -> tuple[Tensor | None, Tensor] | None:
        """Feed n nodes of a chain, after `root`; see `HeadFrontier.roll_out`.

        Returns no tokens where the logits [n, V] hold for any.
        """
        nodes, state, ids = range(len(u)), self._states[-1], None
        if self.network.marginal:
            self._states.update(dict.fromkeys(nodes, state))
        elif self.network.rolls:
            logits = self.network.scores(self._seen, 0, state[None], self._by)
            width = len(state) - logits.shape[1]
            rolled = self._roll_out(("step", 1), state[None], width, u, warp)
            if rolled is None:
                return None
            ids, states = rolled
            self._states.update(enumerate(states))
        else:
            return None
        self._deep.update((node, node + 1) for node in nodes)
        return ids, torch.cat([self._scores([node]) for node in nodes])

    def take_back(self, count: int) -> None:
        """Do nothing: states of nodes that are fed again are made again."""

    def _scores(self, nodes: Sequence[int]) -> Tensor:
        """Return [n, V] logits after some nodes of one depth."""
        states = torch.stack([self._states[node] for node in nodes])
        depth = self._deep[nodes[0]]
        return self._spread(self.network.scores(self._seen, depth, states, self._by))

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        new_rows: Tensor = self.network.read(hidden, tokens, self._read, self._by)
        return new_rows

"""The frontiers of heads that predict several tokens at once: from one pass, or block by block.

Their drafts grow over `HiddenReader` without a pass for each depth.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.heads.falcon import FalconNetwork, State
from spsbench.heads.network import ParallelNetwork, Target
from spsbench.loop.drafter_context import Cache, TargetParts
from spsbench.loop.sampling import Warp, send
from spsbench.loop.tree import tree_of
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.head_frontier import HiddenReader


class ParallelFrontier(HiddenReader):
    """A frontier that grows a draft from one pass: states instead of rows of a cache."""

    def __init__(
        self, network: ParallelNetwork, target: TargetParts, cache: Cache, *more: Any
    ) -> None:
        super().__init__(network, target, cache, *more)
        self.deepest = network.deepest

    @property
    def _by(self) -> Target:
        return Target(self._embed, self._their_head, self._cache, self._over_texts)

    def depth(self, context: Context, k: int) -> int:
        self._count = super().depth(context, k)
        return self._count

    def _root(self, context: Context) -> Tensor:
        """Run the head's one pass for all depths; return the [1, V] logits after the text."""
        token = send(torch.tensor(context.tokens[-1]), self._target.device)
        self._seen = self.network.look(self._newest, token, self._read, self._count, self._by)
        self._cache.keep(self._read)  # what the look wrote is of this round alone
        self._states[-1] = self.network.start(self._seen, token, self._by)  # [S]
        return self._scores([-1])

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        before, depth = self._after(parents), self._depths[parents[0]]
        fed = send(tokens, self._target.device)
        states = self.network.step(self._seen, depth, before, fed, self._by)
        self._states.update(zip(nodes, states, strict=True))
        return self._scores(nodes)

    def _rolled(self, u: Tensor, warp: Warp) -> tuple[Tensor | None, Tensor] | None:
        """Draw n nodes by `u` in one call, as `roll_out` does; None: the head feeds one by one."""
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
        return ids, torch.cat([self._scores([node]) for node in nodes])

    def _scores(self, nodes: Sequence[int]) -> Tensor:
        """Return [n, V] logits after some nodes of one depth."""
        depth = self._depths[nodes[0]]
        return self._spread(self.network.scores(self._seen, depth, self._after(nodes), self._by))

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        new_rows: Tensor = self.network.read(hidden, tokens, self._read, self._by)
        return new_rows


TEXT = -1  # the block that the text ends in


class PredictedFeatures(NamedTuple):
    """The predicted features after a text and some blocks."""

    features: Tensor  # [k, H]
    logits: Tensor  # [k, V]
    state: State  # the LSTM's, after its rows


class Place(NamedTuple):
    """The position of a node: its block and its slot."""

    block: int  # the block that predicted it, or TEXT
    path: tuple[Tensor, ...]  # the tokens since, its own the last


class BlockFrontier(HiddenReader):
    """The cache of a Falcon head: rows of the text, then k rows for each drafted block."""

    network: FalconNetwork

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._state = self.network.start(1)  # after the rows of the text
        self._last = self._state[0][0, :0]  # [<= k, H] its last rows
        super().begin(prompt, prefill)

    def depth(self, context: Context, k: int) -> int:
        return 0 if len(context.tokens) <= self.network.block else k

    def _root(self, context: Context) -> Tensor:
        """Predict and keep the block after the text; return the [1, V] logits of its first slot."""
        network, k = self.network, self.network.block
        places = torch.arange(self._read - k, self._read, device=self._target.device)
        features = network.predict(self._last, places, self._kv, None)
        self._blocks[TEXT] = PredictedFeatures(features, self._logits(features), self._state)
        return self._blocks[TEXT].logits[:1]

    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Place the nodes, predict a block after each that ends one; return their [n, V] logits."""
        fed = send(tokens, self._target.device)
        for i, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            above = self._at[parent]
            self._at[node] = Place(above.block, (*above.path, fed[i]))
        if len(self._at[nodes[0]].path) == self.network.block:
            self._grow(nodes)
        places = [self._at[node] for node in nodes]
        return torch.stack([self._blocks[at.block].logits[len(at.path)] for at in places])

    def _grow(self, nodes: Sequence[int]) -> None:
        """Predict a block after each of `nodes`, which all end one; place each before its block."""
        network, n, k = self.network, len(nodes), self.network.block
        ends = [self._at[node] for node in nodes]
        before = [self._blocks[at.block] for at in ends]
        features = torch.stack([block.features for block in before], 1)  # [k, n, H]
        tokens = torch.stack([token for at in ends for token in at.path])
        embedded = self._embed(tokens).view(n, k, -1).transpose(0, 1)
        outputs, cells = (
            torch.cat(part, 1) for part in zip(*(b.state for b in before), strict=True)
        )
        rows, (outputs, cells) = network.rows(features, embedded, (outputs, cells))
        rows = rows.transpose(0, 1).flatten(0, 1)  # [n * k, H], a block after the other
        first = len(self._above)
        self._above += [at.block for at in ends]
        places, sees = self._places(n)
        kv = network.append_kv(rows, places, self._cache)
        predicted = network.predict(rows, places, kv, sees)
        logits = self._logits(predicted)
        for i, node in enumerate(nodes):
            block_rows = slice(i * k, (i + 1) * k)
            state = outputs[:, i : i + 1], cells[:, i : i + 1]
            self._blocks[first + i] = PredictedFeatures(
                predicted[block_rows], logits[block_rows], state
            )
            self._at[node] = Place(first + i, ())

    def _places(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the last n blocks' positions [n * k] and bool mask [n * k, rows], True: seen."""
        k, tree = self.network.block, tree_of(torch.tensor(self._above))
        start = self._read + k * tree.ancestors[-n:]
        places = (start[:, None] + torch.arange(k)).flatten()
        sees = torch.ones(n * k, self._read + k * len(self._above), dtype=torch.bool)
        sees[:, self._read :] = tree.visible[-n:].repeat_interleave(k, 0).repeat_interleave(k, 1)
        device = self._target.device
        return send(places, device), send(sees, device)

    def _forget(self) -> None:
        super()._forget()
        self._blocks: dict[int, PredictedFeatures] = {}
        self._above: list[int] = []  # the block before each drafted block
        self._at = {-1: Place(TEXT, ())}

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        """Feed the text's new features and tokens into LSTM and cache; return [H], the last row."""
        network, embedded = self.network, self._embed(tokens)
        rows, self._state = network.rows(hidden[0][:, None], embedded[:, None], self._state)
        new_rows = rows[:, 0]
        places = torch.arange(self._read, self._read + len(new_rows), device=new_rows.device)
        self._kv = network.append_kv(new_rows, places, self._cache)
        self._last = torch.cat([self._last, new_rows])[-network.block :]
        return new_rows[-1]

    def _logits(self, features: Tensor) -> Tensor:
        """Map [n, H] to [n, V] logits."""
        return self._spread(self.network.scores(features, self._their_head))

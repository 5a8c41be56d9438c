"""A head that foretells a block of tokens a pass, while a draft grows in it (Falcon).

A node at depth d of a draft is slot (d - 1) mod k of a block. Nodes within a block share its
laws, whatever was drawn in it before them: marginals, given the text and the blocks before, and the
laws that their tokens are drawn from. Below every k-th depth each path has a block of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.loop.site import Cache, TargetParts
from spsbench.loop.transfer import send
from spsbench.loop.trees import depths, visible
from spsbench.loop.types import Context, Scores
from spsbench.methods.heads.falcon import FalconNetwork, State
from spsbench.methods.heads.reader import HiddenReader

TEXT = -1  # the block that the text ends in


class Block(NamedTuple):
    """What is foretold after some text and blocks."""

    features: Tensor  # [k, H]
    logits: Tensor  # [k, V]
    state: State  # of the LSTM after its rows


class Place(NamedTuple):
    """Where a node is."""

    block: int  # that foretold it, or TEXT
    path: tuple[Tensor, ...]  # the tokens since, its own the last


class BlockFrontier(HiddenReader):
    """The cache of such a head: rows of the text, then k rows for each drafted block."""

    network: FalconNetwork

    def __init__(self, network: FalconNetwork, target: TargetParts, cache: Cache) -> None:
        self._state = network.start(1)  # after the rows of the text
        self._last = self._state[0][0, :0]  # [<= k, H] its last rows
        self._held: Any = None
        super().__init__(network, target, cache)

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Read the prompt: every token but the last has features by now."""
        self._state = self.network.start(1)
        self._last = self._state[0][0, :0]
        super().begin(prompt, prefill)

    def depth(self, context: Context, k: int) -> int:
        """Nothing before the text has the rows of a block."""
        return 0 if len(context.tokens) <= self.network.block else k

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        """[1, V] logits after the text."""
        network, k = self.network, self.network.block
        places = torch.arange(self._read - k, self._read, device=self._target.device)
        made = network.foretell(self._last, places, self._held, None)
        self._blocks[TEXT] = Block(made, self._logits(made), self._state)
        return self._blocks[TEXT].logits[:1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[n, V] logits after each of some nodes of one depth; a pass below every k-th depth."""
        fed = send(tokens, self._target.device)
        for i, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            above = self._at[parent]
            self._at[node] = Place(above.block, (*above.path, fed[i]))
        if len(self._at[nodes[0]].path) == self.network.block:
            self._grow(nodes)
        found = [self._at[node] for node in nodes]
        return torch.stack([self._blocks[at.block].logits[len(at.path)] for at in found])

    def _grow(self, nodes: Sequence[int]) -> None:
        """A block for each of some nodes that end one, all in one pass."""
        network, n, k = self.network, len(nodes), self.network.block
        found = [self._at[node] for node in nodes]
        before = [self._blocks[at.block] for at in found]
        features = torch.stack([block.features for block in before], 1)  # [k, n, H]
        tokens = torch.stack([token for at in found for token in at.path])
        embedded = self._embed(tokens).view(n, k, -1).transpose(0, 1)
        outputs, cells = (
            torch.cat(part, 1) for part in zip(*(b.state for b in before), strict=True)
        )
        rows, (outputs, cells) = network.rows(features, embedded, (outputs, cells))
        rows = rows.transpose(0, 1).flatten(0, 1)  # [n * k, H], a block after the other
        first = len(self._above)
        self._above += [at.block for at in found]
        places, sees = self._places(n)
        held = network.note(rows, places, self._cache)
        made = network.foretell(rows, places, held, sees)
        logits = self._logits(made)
        for i, node in enumerate(nodes):
            own = slice(i * k, (i + 1) * k)
            state = outputs[:, i : i + 1], cells[:, i : i + 1]
            self._blocks[first + i] = Block(made[own], logits[own], state)
            self._at[node] = Place(first + i, ())

    def _places(self, n: int) -> tuple[Tensor, Tensor]:
        """Of the last n blocks where their rows stand [n * k], and what these see [n * k, all]."""
        k, above = self.network.block, torch.tensor(self._above)
        start = self._read + k * depths(above)[-n:]
        places = (start[:, None] + torch.arange(k)).flatten()
        sees = torch.ones(n * k, self._read + k * len(above), dtype=torch.bool)
        theirs = visible(above)[-n:].repeat_interleave(k, 0).repeat_interleave(k, 1)
        sees[:, self._read :] = theirs
        device = self._target.device
        return send(places, device), send(sees, device)

    def _forget(self) -> None:
        super()._forget()
        self._blocks: dict[int, Block] = {}
        self._above: list[int] = []  # of each drafted block, the one before it
        self._at = {-1: Place(TEXT, ())}

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor, places: Tensor) -> Tensor:
        network, embedded = self.network, self._embed(tokens)
        rows, self._state = network.rows(hidden[0][:, None], embedded[:, None], self._state)
        made = rows[:, 0]
        self._held = network.note(made, places, self._cache)
        self._last = torch.cat([self._last, made])[-network.block :]
        return made[-1]

    def _logits(self, features: Tensor) -> Tensor:
        """[n, H] -> [n, V] logits."""
        return self._spread(self.network.scores(features, self._their_head))

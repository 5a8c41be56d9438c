"""Falcon: semi-autoregressive drafting, a block of k tokens a pass (arXiv 2412.12639).

Two layers of LSTM over `[embedding of token j + 1; feature of token j]` make a row of width H. The
last k rows of a text are a block: in a decoder layer they see all of the text and each other, later
ones too (the relaxed causal mask), and row j predicts the feature of token j + k (sections 3.1 and
3.2). The predicted features and k tokens are the next block. Keys and values of the one decoder
layer are made of the LSTM's rows, which do not depend on where a block begins: they are cached.

A node at depth d of a draft is slot (d - 1) mod k of a block. Nodes within a block share its laws,
whatever was drawn in it before them: marginals, given the text and the blocks before, from which
their tokens are drawn, so every rule that accepts the kind of draft is exact. Below every k-th
depth each path has a block of its own. The paper accepts the target's likeliest tokens along a
tree of the likeliest per slot: `siblings=top`, or `width`, with `match`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import send
from spsbench.loop.trees import depths, visible
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.layers import Attention, Held, Layer, Rotary
from spsbench.methods.heads.network import Ranking, Rows
from spsbench.methods.heads.reader import HiddenReader
from spsbench.models.heads.description import FalconShape
from spsbench.models.heads.formats.falcon import answered

State = tuple[Tensor, Tensor]
"""Outputs and cells of both layers of the LSTM, each [2, B, H]."""

TEXT = -1  # the block that the text ends in


class FalconNetwork(Ranking):
    """`lstm` [2H -> H], then a layer without a norm before its attention; the target's head.

    Attributes:
        block: k, the tokens that a pass predicts.
    """

    def __init__(self, shape: FalconShape, layers: int) -> None:
        super().__init__(shape, layers)
        width = shape.layer.width
        self.block = shape.block
        self.lstm = nn.LSTM(2 * width, width, num_layers=2, bias=shape.bias)
        self.layer = Layer(shape.layer, 0, normed=False)
        self.rotary = Rotary(shape.layer)

    def start(self, count: int) -> State:
        """Return the LSTM state before the first row of `count` texts."""
        weight = next(self.lstm.parameters())
        zeros = weight.new_zeros(2, count, self.shape.layer.width)
        return zeros, zeros

    def rows(self, features: Tensor, embedded: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the LSTM over [T, B, H] features and embeddings of B texts; return rows and state.

        Without recurrence every row starts from a zero state, and the state stays.
        """
        both = torch.cat([embedded, features], -1)
        if not self.shape.recurrent:
            alone: Tensor = self.lstm(both.flatten(0, 1)[None])[0]
            return alone.view(features.shape), state
        outputs, after = self.lstm(both, state)
        return outputs, after

    def append_kv(self, rows: Tensor, positions: Tensor, cache: Cache) -> Held:
        """Append keys and values of [m, H] rows to `cache`, and return all of them."""
        attention: Attention = self.layer.self_attn
        return attention.append_kv(rows, self.rotary(positions, rows.dtype), cache)

    def foretell(self, rows: Tensor, positions: Tensor, held: Held, sees: Tensor | None) -> Tensor:
        """Map [n, H] rows, whose keys are cached, to [n, H] features k tokens ahead.

        Args:
            rows: of blocks.
            positions: [n] of the rows.
            held: keys and values of all rows.
            sees: [n, all] bool, the rows that each row attends to; None: all.
        """
        places = self.rotary(positions, rows.dtype)
        x = rows + self.layer.self_attn.look(rows, places, held, sees)
        features: Tensor = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        return features

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        """Map [n, H] features to [n, V] logits of the next token by the target's head."""
        return head(features)


class Block(NamedTuple):
    """The predicted features after a text and some blocks."""

    features: Tensor  # [k, H]
    logits: Tensor  # [k, V]
    state: State  # of the LSTM after its rows


class Place(NamedTuple):
    """The position of a node: its block and its slot."""

    block: int  # that foretold it, or TEXT
    path: tuple[Tensor, ...]  # the tokens since, its own the last


class BlockFrontier(HiddenReader):
    """The cache of a Falcon head: rows of the text, then k rows for each drafted block."""

    network: FalconNetwork

    def __init__(
        self, network: FalconNetwork, target: TargetParts, cache: Cache, together: Together = alone
    ) -> None:
        self._state = network.start(1)  # after the rows of the text
        self._last = self._state[0][0, :0]  # [<= k, H] its last rows
        self._held: Any = None
        super().__init__(network, target, cache, together)

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._state = self.network.start(1)
        self._last = self._state[0][0, :0]
        super().begin(prompt, prefill)

    def depth(self, context: Context, k: int) -> int:
        return 0 if len(context.tokens) <= self.network.block else k

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        network, k = self.network, self.network.block
        places = torch.arange(self._read - k, self._read, device=self._target.device)
        features = network.foretell(self._last, places, self._held, None)
        self._blocks[TEXT] = Block(features, self._logits(features), self._state)
        return self._blocks[TEXT].logits[:1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        fed = send(tokens, self._target.device)
        for i, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            above = self._at[parent]
            self._at[node] = Place(above.block, (*above.path, fed[i]))
        if len(self._at[nodes[0]].path) == self.network.block:
            self._grow(nodes)
        parents_at = [self._at[node] for node in nodes]
        return torch.stack([self._blocks[at.block].logits[len(at.path)] for at in parents_at])

    def _grow(self, nodes: Sequence[int]) -> None:
        """Predict a block after each node that ends one, all in one pass."""
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
        held = network.append_kv(rows, places, self._cache)
        foretold = network.foretell(rows, places, held, sees)
        logits = self._logits(foretold)
        for i, node in enumerate(nodes):
            block_rows = slice(i * k, (i + 1) * k)
            state = outputs[:, i : i + 1], cells[:, i : i + 1]
            self._blocks[first + i] = Block(foretold[block_rows], logits[block_rows], state)
            self._at[node] = Place(first + i, ())

    def _places(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the last n blocks' positions [n * k] and their mask [n * k, all]."""
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

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        network, embedded = self.network, self._embed(tokens)
        rows, self._state = network.rows(hidden[0][:, None], embedded[:, None], self._state)
        new_rows = rows[:, 0]
        places = torch.arange(self._read, self._read + len(new_rows), device=new_rows.device)
        self._held = network.append_kv(new_rows, places, self._cache)
        self._last = torch.cat([self._last, new_rows])[-network.block :]
        return new_rows[-1]

    def _logits(self, features: Tensor) -> Tensor:
        """Map [n, H] to [n, V] logits."""
        return self._spread(self.network.scores(features, self._their_head))


@dataclass(frozen=True)
class Falcon(HeadDrafter):
    """A chain or tree drafter over a Falcon head.

    Args:
        recurrence: `text` or `none`, which a file of its authors leaves open.
    """

    network = FalconNetwork
    frontier = BlockFrontier

    recurrence: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        answered(self.recurrence)

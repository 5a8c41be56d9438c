"""The network of Falcon (Gao et al. 2024, arXiv 2412.12639, sections 3.1 and 3.2).

Two layers of LSTM over `[embedding of token j + 1; feature of token j]` make a row of width H. The
last k rows of a text are a block: in a decoder layer they see all of the text and each other, those
that come later, too (the relaxed causal mask), and row j foretells the feature of token j + k. So
one pass foretells k tokens. What it foretold and k tokens are the next block.

There is one decoder layer, and its keys and values are made of the LSTM's rows: what a row of the
text has written is the same wherever a block began, and stays in the cache.
"""

import torch
from torch import Tensor, nn

from spsbench.loop.site import Cache
from spsbench.methods.heads.layers import Attention, Layer, Rotary
from spsbench.methods.heads.network import Ranking, Rows
from spsbench.models.heads.description import FalconShape

State = tuple[Tensor, Tensor]
"""Of the LSTM, each [2, B, H]: outputs and cells of both layers."""

Held = tuple[Tensor, Tensor]
"""Keys and values of all rows so far, each [1, kv_heads, n, head_dim]."""


class FalconNetwork(Ranking):
    """`lstm` [2H -> H], then a layer without a norm before its attention; the target's head.

    Attributes:
        layers: of the target: the last hidden state, which is the normed one.
        block: k, the tokens that a pass foretells.
    """

    def __init__(self, shape: FalconShape, layers: int) -> None:
        super().__init__()
        width = shape.layer.width
        self.shape, self.layers, self.block = shape, (layers,), shape.block
        self.lstm = nn.LSTM(2 * width, width, num_layers=2, bias=shape.bias)
        self.layer = Layer(shape.layer, 0, normed=False)
        self.rotary = Rotary(shape.layer)
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, width)

    def start(self, count: int) -> State:
        """Before the first row of `count` texts."""
        weight = next(self.lstm.parameters())
        zeros = weight.new_zeros(2, count, self.shape.layer.width)
        return zeros, zeros

    def rows(self, features: Tensor, embedded: Tensor, state: State) -> tuple[Tensor, State]:
        """[T, B, H] features and embeddings of B texts, after `state` -> [T, B, H], the next state.

        Without recurrence every row begins at nothing, and the state stays.
        """
        both = torch.cat([embedded, features], -1)
        if not self.shape.recurrent:
            alone: Tensor = self.lstm(both.flatten(0, 1)[None])[0]
            return alone.view(features.shape), state
        made, after = self.lstm(both, state)
        return made, after

    def note(self, rows: Tensor, positions: Tensor, cache: Cache) -> Held:
        """Keys and values of [m, H] rows go into `cache`; all of them."""
        attention: Attention = self.layer.self_attn
        return attention.note(rows, self.rotary(positions, rows.dtype), cache)

    def foretell(self, rows: Tensor, positions: Tensor, held: Held, sees: Tensor | None) -> Tensor:
        """[n, H] rows that have been noted -> [n, H] features, each k tokens further on.

        Args:
            rows: of blocks.
            positions: [n] where they stand.
            held: keys and values of everything.
            sees: [n, all] bool, what each row sees; None: everything.
        """
        places = self.rotary(positions, rows.dtype)
        x = rows + self.layer.self_attn.look(rows, places, held, sees)
        made: Tensor = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        return made

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        """[n, H] features -> [n, V] logits of the token after, by the target's head."""
        return head(features)

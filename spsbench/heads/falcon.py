"""Falcon: semi-autoregressive drafting, a block of k tokens a pass (arXiv 2412.12639).

Two layers of LSTM over `[embedding of token j + 1; feature of token j]` make a row of width H. The
last k rows of a text are a block: in a decoder layer they see all of the text and each other, later
ones too (the relaxed causal mask), and row j predicts the feature of token j + k (sections 3.1 and
3.2). The predicted features and k tokens are the next block. Keys and values of the one decoder
layer are made of the LSTM's rows, which do not depend on where a block begins: they are cached.

A node at depth d of a draft is slot (d - 1) mod k of a block. Nodes within a block share its probs,
whatever was drawn in it before them: marginals, given the text and the blocks before, from which
their tokens are drawn, so every rule that accepts the kind of draft is exact. Below every k-th
depth each path has a block of its own. The paper accepts the target's likeliest tokens along a
tree of the likeliest per slot: `siblings=top`, or `width`, with `match`.

Source: Bestpay-inc/Falcon, `models/cnets.py`: the config of a Llama of one layer with `k_mask`, the
tokens of a block; `bias` is that of the LSTM, and defaults to true. That code cannot run as
published: it passes the LSTM's pair of outputs and states on as features, and feeds the text along
the dimension that this LSTM takes for the batch. The paper has the LSTM "retain information about
past tokens", so along the text; weights that were trained by the code, mended, may have no
recurrence. Both load and draft, so the recurrence is stated: `recurrence` is `text` or `none`, in
config.json (`sps train` writes it) or by the user.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.errors import DataError, UsageError
from spsbench.heads.families import FLAGS
from spsbench.heads.files import MANY, Files, read_size
from spsbench.heads.layers import (
    KV,
    Attention,
    Layer,
    LayerShape,
    Rotary,
    as_filed,
    layer_shape,
    layers_in,
)
from spsbench.heads.network import HeadModule, Rows
from spsbench.loop.drafter_context import Cache

RECURRENCE = FLAGS["falcon"]["recurrence"]

State = tuple[Tensor, Tensor]
"""Outputs and cells of both layers of the LSTM, each [2, B, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconShape:
    """The shape of a Falcon head."""

    layer: LayerShape
    block: int  # tokens that a pass foretells
    recurrent: bool  # the LSTM runs along the text; else it begins anew at every row
    bias: bool = True  # the LSTM has biases
    vocab: int = 0  # rows of its own embeddings
    own_embedding: bool = False


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> FalconShape:
    """Return the shape of LSTM and layer; DataError: more layers; UsageError: no `recurrence`."""
    config, where = files.config, files.where
    layer = as_filed(headers, layer_shape(config, where))
    if (deep := layers_in(headers, config, where)) != 1:
        raise DataError(
            f"{deep} layers ({files.folder}): expected 1. What rows of the text see in a "
            "second layer of Falcon depends on where blocks began, so such heads are not read"
        )
    return FalconShape(
        layer=layer,
        block=read_size(config, "k_mask", where, most=MANY),
        recurrent=recurrence(files) == "text",
        bias=bool(config.get("bias", True)),
        vocab=read_size(config, "vocab_size", where),
        own_embedding="embed_tokens.weight" in headers,
    )


def recurrence(files: Files) -> str:
    """Return `text` or `none`, how the LSTM is run, by the user's answer, else the config's.

    UsageError: neither says. DataError: another word.
    """
    answer = files.overrides.get("recurrence") or files.config.get("recurrence")
    if answer is None:
        raise UsageError(
            f"{files.folder} does not say how its LSTM is run, and its authors' code cannot be run "
            "as published: expected recurrence in config.json. Say `drafter` falcon:recurrence=text"
            " (along the text, as in the paper), or recurrence=none (anew at every row); sps plan "
            "tells which accepts more"
        )
    if answer not in RECURRENCE:
        raise DataError(f"recurrence is {answer!r} ({files.where}): expected text or none")
    return str(answer)


class FalconNetwork(HeadModule):
    """`lstm` [2H -> H], then a layer without a norm before its attention; the target's head.

    `block` is k, the number of tokens that a pass predicts.
    """

    def __init__(self, shape: FalconShape, layers: int) -> None:
        super().__init__(shape, layers)
        width = shape.layer.width
        self.block = shape.block
        self.lstm = nn.LSTM(2 * width, width, num_layers=2, bias=shape.bias)
        self.stack = nn.ModuleList([Layer(shape.layer, 0, normed=False)])
        self.rotary = Rotary(shape.layer)

    @property
    def layer(self) -> Any:
        return self.stack[0]

    def start(self, count: int) -> State:
        weight = next(self.lstm.parameters())
        zeros = weight.new_zeros(2, count, self.shape.layer.width)
        return zeros, zeros

    def rows(self, features: Tensor, embedded: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the LSTM over [T, B, H] features and embeddings of B texts: [T, B, H] rows, state.

        Without recurrence every row starts from a zero state, and `state` is returned as it is.
        """
        both = torch.cat([embedded, features], -1)
        if not self.shape.recurrent:
            alone: Tensor = self.lstm(both.flatten(0, 1)[None])[0]
            return alone.view(features.shape), state
        outputs, after = self.lstm(both, state)
        return outputs, after

    def append_kv(self, rows: Tensor, positions: Tensor, cache: Cache) -> KV:
        """Append keys and values of [m, H] rows to `cache`, and return all of them."""
        attention: Attention = self.layer.self_attn
        return attention.append_kv(rows, self.rotary(positions, rows.dtype), cache)

    def predict(self, rows: Tensor, positions: Tensor, kv: KV, sees: Tensor | None) -> Tensor:
        """Map [n, H] rows at [n] positions, whose keys are cached, to features k tokens ahead.

        `kv` are the keys and values of all rows; `sees` [n, all] bool says which of them each row
        attends to; None: all.
        """
        places = self.rotary(positions, rows.dtype)
        x = rows + self.layer.self_attn.look(rows, places, kv, sees)
        features: Tensor = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        return features

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        return head(features)


network = FalconNetwork

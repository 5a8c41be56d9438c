"""EAGLE-1, EAGLE-2 and HASS: a layer predicts the target's next feature (arXiv 2401.15077).

One decoder layer over `fc([embedding of token j + 1; feature of token j])`, where the feature is
the target's last hidden state after its final norm; its output goes through the target's head. The
three methods have the same network and differ in its training and in the shape of their trees.

Source: SafeAILab/EAGLE, `cnets1.py` and `ea_model.py`. The config is that of a Llama of one layer;
`bias` says whether `fc` has one, and absent it has. vLLM's copies have `model.` before the names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.heads.files import Files, read_size
from spsbench.heads.layers import (
    Layer,
    LayerShape,
    Rotary,
    RowPositions,
    as_filed,
    layer_shape,
    layers_in,
)
from spsbench.heads.network import HeadNetwork
from spsbench.loop.drafter_context import Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """The shape of a head of EAGLE-1 or 2, or HASS."""

    layer: LayerShape
    depth: int = 1  # layers
    fc_bias: bool = True
    vocab: int = 0  # rows of its own embeddings
    own_embedding: bool = False
    feature_first: bool = False  # `fc` reads [feature; embedding], else [embedding; feature]


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> EagleShape:
    """Return the shape by config, tensors and the user's `order`; DataError: a value is wrong."""
    config, where = files.config, files.where
    return EagleShape(
        layer=as_filed(headers, layer_shape(config, where)),
        depth=layers_in(headers, config, where),
        fc_bias=bool(config.get("bias", True)),
        vocab=read_size(config, "vocab_size", where),
        own_embedding="embed_tokens.weight" in headers,
        feature_first=files.overrides.get("order") == "feature",
    )


class EagleNetwork(HeadNetwork):
    """`[m, H]` features and `[m, H]` embeddings through `fc` [H, 2H] and decoder layers."""

    def __init__(self, shape: EagleShape, layers: int) -> None:
        super().__init__(shape, layers)
        layer = shape.layer
        self.fc = nn.Linear(2 * layer.width, layer.width, bias=shape.fc_bias)
        self.stack = nn.ModuleList(Layer(layer, i, normed=i > 0) for i in range(shape.depth))
        self.rotary = Rotary(layer)

    def step(
        self, features: Tensor, embedded: Tensor, places: RowPositions, cache: Cache, sees: Any
    ) -> Tensor:
        """Run `fc` over both halves in the shape's order, then layers over `cache`: [m, H], raw."""
        both = [features, embedded] if self.shape.feature_first else [embedded, features]
        x: Tensor = self.fc(torch.cat(both, -1))
        for layer in self.stack:
            x = layer(x, places, cache, sees)
        return x


network = EagleNetwork

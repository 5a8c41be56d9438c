"""The network of EAGLE-1 and EAGLE-2 (Li et al. 2024, arXiv 2401.15077, section 4.1), and of HASS.

One decoder layer over `fc([embedding of token j + 1; feature of token j])`, where the feature is
the target's last hidden state after its final norm; what comes out goes through the target's head.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.loop.site import Cache
from spsbench.methods.heads.layers import Layer, Rotary
from spsbench.methods.heads.network import HeadNetwork, Rows
from spsbench.models.heads.description import EagleShape


class EagleNetwork(HeadNetwork):
    """`[m, H]` features and `[m, H]` embeddings through `fc` [H, 2H] and its layers."""

    def __init__(self, shape: EagleShape, layers: int) -> None:
        super().__init__()
        layer = shape.layer
        self.layers = (layers,)  # of the target: the last hidden state is the normed one
        self.fc = nn.Linear(2 * layer.width, layer.width, bias=shape.fc_bias)
        self.stack = nn.ModuleList(Layer(layer, i, normed=i > 0) for i in range(shape.depth))
        self.rotary = Rotary(layer)
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, layer.width)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """The one hidden state as it is."""
        return hidden[0]

    def step(
        self, features: Tensor, embedded: Tensor, positions: Tensor, cache: Cache, sees: Any
    ) -> Tensor:
        """As `HeadNetwork.step`."""
        x: Tensor = self.fc(torch.cat([embedded, features], -1))
        places = self.rotary(positions, x.dtype)
        for layer in self.stack:
            x = layer(x, places, cache, sees)
        return x

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        """By the target's head, without another norm."""
        return head(features)

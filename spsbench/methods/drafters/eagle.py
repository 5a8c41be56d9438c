"""EAGLE-1, EAGLE-2 and HASS: a layer predicts the target's next feature (arXiv 2401.15077).

One decoder layer over `fc([embedding of token j + 1; feature of token j])`, where the feature is
the target's last hidden state after its final norm; its output goes through the target's head. The
three methods have the same network and differ in its training and in the shape of their trees.
"""

from typing import Any

import torch
from torch import Tensor, nn

from spsbench.loop.drafter_context import Cache
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.layers import Layer, Places, Rotary
from spsbench.methods.heads.network import HeadNetwork
from spsbench.models.heads.description import EagleShape


class EagleNetwork(HeadNetwork):
    """`[m, H]` features and `[m, H]` embeddings through `fc` [H, 2H] and decoder layers."""

    def __init__(self, shape: EagleShape, layers: int) -> None:
        super().__init__(shape, layers)
        layer = shape.layer
        self.fc = nn.Linear(2 * layer.width, layer.width, bias=shape.fc_bias)
        self.stack = nn.ModuleList(Layer(layer, i, normed=i > 0) for i in range(shape.depth))
        self.rotary = Rotary(layer)

    def step(
        self, features: Tensor, embedded: Tensor, places: Places, cache: Cache, sees: Any
    ) -> Tensor:
        x: Tensor = self.fc(torch.cat([embedded, features], -1))
        for layer in self.stack:
            x = layer(x, places, cache, sees)
        return x


class Eagle(HeadDrafter):
    """A chain or tree drafter over a head of EAGLE-1's shape."""

    network = EagleNetwork
    frontier = HeadFrontier

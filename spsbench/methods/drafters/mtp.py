"""MTP: a target's own layer for predicting one token more (DeepSeek-V3, arXiv 2412.19437).

A decoder layer over `fc` of the normed embedding of token j + 1 and the normed feature of token j.
Its normed output is the next feature: one layer is used for all depths, as in FastMTP
(arXiv 2509.18362). Embeddings and head are the target's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from spsbench.loop.drafter_context import Cache
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.layers import Layer, Places, Rotary
from spsbench.methods.heads.network import HeadNetwork
from spsbench.models.heads.description import MtpShape


class MtpNetwork(HeadNetwork):
    """`fc` [H, 2H], a layer, and three norms."""

    def __init__(self, shape: MtpShape, layers: int) -> None:
        super().__init__(shape, layers)
        layer = shape.layer
        self.norm_embedded = nn.RMSNorm(layer.width, eps=layer.eps)
        self.norm_feature = nn.RMSNorm(layer.width, eps=layer.eps)
        self.fc = nn.Linear(2 * layer.width, layer.width, bias=False)
        self.layer = Layer(layer, 0)
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.rotary = Rotary(layer)

    def step(
        self, features: Tensor, embedded: Tensor, places: Places, cache: Cache, sees: Any
    ) -> Tensor:
        if self.shape.hidden_first:  # MiMo: the first token's row has no embedding
            embedded = embedded.masked_fill(places.positions[:, None] == 0, 0.0)
        both = [self.norm_embedded(embedded), self.norm_feature(features)]
        x = self.fc(torch.cat(both[::-1] if self.shape.hidden_first else both, -1))
        feature: Tensor = self.norm(self.layer(x, places, cache, sees))
        return feature


class Mtp(HeadDrafter):
    """A chain or tree drafter over one MTP layer for all depths."""

    network = MtpNetwork
    frontier = HeadFrontier

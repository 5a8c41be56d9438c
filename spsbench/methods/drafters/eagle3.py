"""EAGLE-3, 3.1 and its dialects (Li et al. 2025, arXiv 2503.01840, section 3.1).

`fc` makes one feature of n hidden states of the target. The first layer attends over
`[norm(embedding); norm(feature)]`, 2H wide, and adds to the feature. A head of its own ranks the
commonest tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Cache
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.layers import Attention, Layer, Mlp, Places, Rotary
from spsbench.methods.heads.network import HeadNetwork, Rows
from spsbench.models.heads.description import Eagle3Shape, LayerShape
from spsbench.models.heads.formats.eagle3 import counted

CHOICES = ("", "raw", "normed")


class FirstLayer(nn.Module):
    """The layer that reads embeddings beside features; its residual is the feature alone."""

    def __init__(self, shape: LayerShape, normed_residual: bool) -> None:
        super().__init__()
        self.normed_residual = normed_residual
        self.hidden_norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width, 0)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.mlp = Mlp(shape)

    def forward(
        self,
        features: Tensor,
        embedded: Tensor,
        places: Places,
        cache: Cache,
        sees: Any,
    ) -> Tensor:
        """Map [m, H] features and embeddings to [m, H]."""
        normed = self.hidden_norm(features)
        residual = normed if self.normed_residual else features
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        x = residual + self.self_attn(both, places, cache, sees)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Eagle3Network(HeadNetwork):
    """`fc` [H, n * Ht], a first layer of 2H, plain layers, a norm and a head [Vd, H]."""

    def __init__(self, shape: Eagle3Shape, layers: int) -> None:
        super().__init__(shape, layers)
        layer, read = shape.layer, len(shape.features) * shape.target_width
        self.fc = nn.Linear(read, layer.width, bias=False)
        first = FirstLayer(layer, shape.normed_residual)
        self.stack = nn.ModuleList([first, *(Layer(layer, i) for i in range(1, shape.depth))])
        self.rotary = Rotary(layer)
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        if shape.norm_each:
            kind = [nn.RMSNorm(shape.target_width, eps=layer.eps) for _ in shape.features]
            self.fc_norm = nn.ModuleList(kind)
        if shape.norm_all:
            self.input_norm = nn.RMSNorm(read, eps=layer.eps)
        if shape.mask_token is not None:
            self.mask_hidden = nn.Parameter(torch.empty(1, 1, read))
        if shape.own_head:
            self.lm_head = nn.Linear(layer.width, shape.draft_vocab, bias=False)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        if self.shape.norm_each:
            hidden = [norm(part) for norm, part in zip(self.fc_norm, hidden, strict=True)]
        joined = torch.cat(list(hidden), -1)
        fused: Tensor = self.fc(self.input_norm(joined) if self.shape.norm_all else joined)
        return fused

    def step(
        self, features: Tensor, embedded: Tensor, places: Places, cache: Cache, sees: Any
    ) -> Tensor:
        first, *layers = self.stack
        x: Tensor = first(features, embedded, places, cache, sees)
        for layer in layers:
            x = layer(x, places, cache, sees)
        return self.norm(x) if self.shape.normed_feedback else x

    def scores(self, features: Tensor, head: Rows) -> Tensor:
        plain = self.shape.normed_feedback or not self.shape.norm_output
        return self.ranked(features if plain else self.norm(features), head)


@dataclass(frozen=True)
class Eagle3(HeadDrafter):
    """A chain or tree drafter over a head of EAGLE-3's shape.

    Args:
        residual, feedback: `raw` or `normed`, where a file leaves it open or says it wrongly.
        features: hidden states, as in 2-16-29, likewise; transformers numbers them.
    """

    network = Eagle3Network
    frontier = HeadFrontier

    residual: str = ""
    feedback: str = ""
    features: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("residual", "feedback"):
            if (value := getattr(self, name)) not in CHOICES:
                raise UsageError(f"eagle3:{name}={value}: expected raw or normed. Choose one")
        counted(self.features)

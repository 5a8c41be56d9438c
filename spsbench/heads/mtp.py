"""MTP: a target's own layer for predicting one token more (DeepSeek-V3, arXiv 2412.19437).

A decoder layer over `fc` of the normed embedding of token j + 1 and the normed feature of token j.
Its normed output is the next feature: one layer is used for all depths, as in FastMTP
(arXiv 2509.18362). Embeddings and head are the target's.

In the files of the target itself, or cut out of them: vllm-project/speculators
`mtp/model_definitions.py` (`mtp_layers.0`), vLLM's loader of MiMo (`model.mtp_layers.0`, whose
projection reads the feature first), and Qwen's names (`mtp.fc`). Layers other than Llama's and
Qwen2's or 3's (gated attention, experts, latent attention) are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.errors import DataError
from spsbench.heads.files import Files, part, whole
from spsbench.heads.layers import Layer, LayerShape, Positions, Rotary, layer_shape
from spsbench.heads.network import HeadNetwork
from spsbench.loop.drafter_context import Cache

PLAIN = ("llama", "qwen2", "qwen3", "mistral", "mimo")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpShape:
    """The shape of a layer that was trained along with its target to predict one token more."""

    layer: LayerShape
    vocab: int
    hidden_first: bool = False  # `fc` reads [feature; embedding], else [embedding; feature]


def shape(files: Files, found: Mapping[str, TensorHeader], layers: int | None) -> MtpShape:
    """Return the shape of one layer over `fc` [H, 2H], between norms."""
    config, where = files.config, files.where
    cut = "speculators_model_type" in config
    text = config.get("text_config")
    sizes: Mapping[str, Any] = config if not isinstance(text, Mapping) else text
    if cut:
        sizes = part(config, "transformer_layer_config", where)
    kind = str(sizes.get("model_type") or "llama")
    if kind not in PLAIN:
        raise DataError(
            f"a prediction layer of {kind} ({where}): expected layers as {', '.join(PLAIN)} have "
            "them. Draft with `drafter` ngram, or another head of this target"
        )
    return MtpShape(
        layer=layer_shape({**sizes, "model_type": "qwen2"} if kind == "mimo" else sizes, where),
        vocab=whole(sizes, "vocab_size", where),
        hidden_first=not cut and "mtp.fc.weight" not in files.headers,
    )


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
        self, features: Tensor, embedded: Tensor, places: Positions, cache: Cache, sees: Any
    ) -> Tensor:
        if self.shape.hidden_first:  # MiMo: the first token's row has no embedding
            embedded = embedded.masked_fill(places.positions[:, None] == 0, 0.0)
        both = [self.norm_embedded(embedded), self.norm_feature(features)]
        x = self.fc(torch.cat(both[::-1] if self.shape.hidden_first else both, -1))
        feature: Tensor = self.norm(self.layer(x, places, cache, sees))
        return feature


network = MtpNetwork

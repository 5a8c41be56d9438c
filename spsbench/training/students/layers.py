"""A layer for a head, of the sizes of its target's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import TargetParts
from spsbench.models.heads.description import LayerShape

SPREAD = 0.02


def layer_of(target: TargetParts, inner: int | None, kind: str) -> LayerShape:
    """Llama's layer in the target's width.

    Raises:
        UsageError: a target that has no sizes to go by.
    """
    config = target.config
    width, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if not width or not heads:
        raise UsageError(
            f"a head for a {config.model_type} (--kind {kind}): expected a target with a hidden "
            "size and heads of attention. Train a draft model: sps train draft"
        )
    told = getattr(config, "head_dim", None) or width // heads
    each = told if told % 2 == 0 else told + 1
    own = max(1, width // each)
    shared = getattr(config, "num_key_value_heads", None) or heads
    group = max(1, heads // shared)
    rope = getattr(config, "rope_parameters", None) or {}
    return LayerShape(
        width=width,
        inner=inner or getattr(config, "intermediate_size", None) or 4 * width,
        heads=own,
        kv_heads=next(n for n in range(max(1, own // group), 0, -1) if own % n == 0),
        head_dim=each,
        eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        positions=int(getattr(config, "max_position_embeddings", None) or 2048),
    )


def head_of(target: TargetParts) -> Callable[[Tensor], Tensor]:
    """The target's own head over [..., H] rows of a network in other numbers."""

    def logits(rows: Tensor) -> Tensor:
        return target.head(rows.to(target.dtype)).to(rows.dtype)

    return logits


def layer_config(shape: LayerShape, vocab: int) -> dict[str, Any]:
    """The config.json of a Llama of one such layer."""
    return {
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "vocab_size": vocab,
        "max_position_embeddings": shape.positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


@torch.no_grad()
def begun(network: nn.Module, seed: int) -> None:
    """Weights to begin with: a fixed spread, what ends a sublayer smaller, biases 0."""
    draw = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        if weight.ndim < 2:
            weight.fill_(1.0 if "norm" in name else 0.0)
            continue
        spread = SPREAD if "o_proj" in name or "down_proj" in name else weight.shape[1] ** -0.5
        numbers = torch.randn(weight.shape, generator=draw, dtype=torch.float32) * spread
        weight.copy_(numbers.to(weight))

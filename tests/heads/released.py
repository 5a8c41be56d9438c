"""Tiny random targets whose files have prediction layers, written as released files are.

The reference is transformers' own `MtpModel`, which its loader finds by the layer numbers of the
released sizes: it is led to the tiny model's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpModel

from spsbench.engines.session.recurrent import register
from spsbench.models.third_party import silent
from tests.oracles.models import NO_IDS, SIZES, UNBOUND

USUAL = {**SIZES, **NO_IDS, **UNBOUND, "max_position_embeddings": 512}
LATENT = {
    "head_dim": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 16}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
FULL = ["full_attention"]
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("nextn", {}),
    "mistral": ("nextn", {"sliding_window": None}),
    "qwen2": ("qwen", {}),
    "qwen3": ("qwen", {}),
    "deepseek_v3": ("nextn", {**LATENT, **ROUTED}),
    "glm4_moe": ("nextn", {**ROUTED, "partial_rotary_factor": 0.5, "use_qk_norm": True}),
    "glm4_moe_lite": ("nextn", {**LATENT, **ROUTED}),
    "qwen3_next": ("qwen", {**SHARED, **DELTA, "partial_rotary_factor": 0.25}),
    "qwen3_5_text": ("qwen", DELTA),
    "qwen3_5_moe_text": ("qwen", {**SHARED, **DELTA}),
    "hy_v3": ("nextn", {**EXPERTS, "num_shared_experts": 1, "first_k_dense_replace": 1}),
    "minimax_m2": ("nextn", {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4}),
    "mellum": ("qwen", {**EXPERTS, "num_mtp_layers": 1, "mtp_layer_types": FULL}),
    "exaone_moe": (
        "qwen",
        {
            **EXPERTS,
            "num_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "layer_types": FULL * 2,
        },
    ),
    "ernie4_5_moe": (
        "ernie",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 16,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
    ),
}
"""Kind of target -> whose names its files have, and what its tiny config says beside the sizes."""

NAMES = {
    "nextn": ("model.layers.{n}.", "model.layers.{n}.", ("eh_proj", "enorm", "hnorm")),
    "qwen": ("mtp.layers.0.", "mtp.", ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")),
    "mimo2": ("model.mtp.layers.{k}.", "model.mtp.layers.{k}.", ("eh_proj", "enorm", "hnorm")),
    "ernie": (
        "model.mtp_block.0.",
        "model.",
        ("mtp_linear_proj.0", "mtp_emb_norm.0", "mtp_hidden_norm.0"),
    ),
}
"""Layout -> where the layer is, where its projection and norms are, and their names."""
LAST = {"nextn": "shared_head.norm", "qwen": "norm", "mimo2": "final_layernorm"}


def released(
    folder: Path,
    kind: str,
    *,
    vocab: int = 24,
    dtype: torch.dtype = torch.float32,
    scale: float = 3.0,
    count: int = 1,
    layout: str | None = None,
    plant: bool = True,
    **more: Any,
) -> PreTrainedModel:
    """Write a target with `count` prediction layers, copies of its last in shape; return it.

    Weights are `scale` times wider than usual, so that probabilities are peaked.
    """
    usual, told = KINDS[kind]
    config = AutoConfig.for_model(kind, **{"vocab_size": vocab, **USUAL, **told, **more})
    with torch.random.fork_rng(), silent():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            drawn(name, weight.data, scale)
        model.to(dtype).save_pretrained(folder)
        (path,) = folder.glob("*.safetensors")
        tensors = load_file(path)
        if plant:
            for k in range(count):
                tensors |= layer(tensors, model, layout or usual, k, scale)
        save_file(tensors, path, metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.config.get_text_config()._experts_implementation = "eager"  # which takes float64, too
    register(model)
    return model.eval().requires_grad_(False)


def drawn(name: str, weight: Tensor, scale: float) -> None:
    """Fill a weight: norms near what they are, others normal, embeddings and heads narrower."""
    if weight.ndim > 1:
        narrow = 1.0 if "lm_head" in name or "embed_tokens" in name else scale
        weight.normal_(std=narrow / weight.shape[-1] ** 0.5)
    elif "norm" in name:
        weight.add_(torch.randn_like(weight) * 0.3)


def layer(
    tensors: Mapping[str, Tensor], model: PreTrainedModel, layout: str, k: int, scale: float
) -> dict[str, Tensor]:
    """Return the tensors of prediction layer `k`, in the shapes of the target's last layer."""
    text = model.config.get_text_config()
    n, width = text.num_hidden_layers, text.hidden_size
    last = f"layers.{n - 1}."
    at, beside, names = NAMES[layout]
    at, beside = (part.format(n=n + k, k=k) for part in (at, beside))
    made = {
        at + name.split(last)[1]: tensor.clone()
        for name, tensor in tensors.items()
        if last in name and not name.startswith(("mtp.", "model.mtp"))
    }
    some = next(iter(tensors.values()))
    made[f"{beside}{names[0]}.weight"] = some.new_empty(width, 2 * width)
    norms = [*names[1:], *([LAST[layout]] if layout in LAST else [])]
    whole = model.get_decoder().norm.weight
    for name in norms:
        made[f"{beside}{name}.weight"] = torch.full_like(whole, float(type_weight(model)))
    for name, tensor in made.items():
        drawn("norm" if "norm" in name else name, tensor, scale)
    if layout == "nextn":
        made[f"{beside}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        made[f"{beside}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    return made


def type_weight(model: PreTrainedModel) -> float:
    """The weight that a new norm of the model's class has: 0 where it counts from zero."""
    return float(type(model.get_decoder().norm)(2).weight[0])


def reference(folder: Path, model: PreTrainedModel, count: int = 1) -> MtpModel:
    """transformers' own prediction layers over `model`, from its files."""
    text = model.config.get_text_config()
    n = text.num_hidden_layers
    model.config.name_or_path = model.config._name_or_path = str(folder)
    text.num_mtp_layers = count
    for kinds, usual in (("layer_types", FULL), ("mlp_layer_types", ["sparse"])):
        if getattr(text, kinds, None) and len(getattr(text, f"mtp_{kinds}", None) or ()) != count:
            setattr(text, f"mtp_{kinds}", usual * count)
    named = [rf"model\.layers\.{i}\..*" for i in range(n, n + count)]
    named = named if KINDS[text.model_type][0] == "nextn" else [r"^mtp.*"]
    model._keys_to_ignore_on_load_unexpected = named
    with silent():
        made = MtpModel.from_pretrained(model).eval().to(model.dtype)
    made.config._experts_implementation = "eager"
    return made


class Wide(TorchFunctionMode):
    """Keeps float64 where transformers computes in float32, so that a walk has one law."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in args):
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if x is torch.float32 else x for x in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def wide() -> Iterator[None]:
    """Compute in float64 throughout."""
    with Wide():
        yield

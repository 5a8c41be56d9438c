"""Tiny random transformers, and noisy copies of them that agree with them now and then."""

import copy
import os
import warnings
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

DEVICE = torch.device(os.environ.get("SPSBENCH_TEST_DEVICE", "cpu"))
"""Where tiny models are: `make test-gpu` names a GPU."""
ARCHITECTURES = ("llama", "gpt2", "qwen2", "qwen3")
ROTARY: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "phi3": Phi3Config,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "gpt_oss": GptOssConfig,
}
KINDS = ["sliding_attention", "full_attention"]
UNBOUND: dict[str, Any] = {"tie_word_embeddings": False}
UNTIED = {"layer_types": KINDS, "tie_word_embeddings": False}  # tied, they repeat a token for ever
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {},
    "gemma2": {**UNTIED, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "phi3": {"original_max_position_embeddings": 512},
    "gemma3": {**UNTIED, "query_pre_attn_scalar": 8},
    "gpt_oss": {"layer_types": KINDS, "num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Architectures with windows, and what their tiny models are told beside the window."""


NO_IDS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def config(architecture: str, vocab: int, context: int, **more: Any) -> PreTrainedConfig:
    if architecture == "gpt2":
        sizes = {"n_positions": context, "n_embd": 32, "n_layer": 2, "n_head": 4}
        return GPT2Config(vocab_size=vocab, **NO_IDS, **{**sizes, **more})
    sizes = {**SIZES, "max_position_embeddings": context}
    return ROTARY[architecture](vocab_size=vocab, **NO_IDS, **{**sizes, **more})


def tiny(
    architecture: str,
    vocab: int = 12,
    context: int = 512,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    attention: str = "sdpa",
    scale: float = 3.0,
    noise: float = 0.0,
    **more: Any,
) -> PreTrainedModel:
    """A model with weights `scale` times wider than usual, so that its probs are peaked and vary.

    With `noise` each weight is moved by that part of its spread: a draft model for the same model
    without it, which agrees with it often but not always.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some configurations warn of what they were not given
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(
            config(architecture, vocab, context, **more), attn_implementation=attention
        )
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                with torch.no_grad():
                    weight.copy_(torch.randn_like(weight) * scale / weight.shape[-1] ** 0.5)
                    if "lm_head" in name or "embed" in name or "wte" in name:
                        weight.div_(scale)
        for name, sinks in made.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(sinks)
        if noise:
            torch.manual_seed(seed + 1000)
            for weight in made.parameters():
                if weight.dim() > 1:
                    with torch.no_grad():
                        weight.add_(torch.randn_like(weight) * weight.std() * noise)
    model = copy.copy(made).eval().to(DEVICE, dtype).requires_grad_(False)
    if DEVICE.type != "cpu":
        model.register_forward_pre_hook(brought, with_kwargs=True)
    return model


def brought(model: Any, args: Any, named: dict[str, Any]) -> Any:
    """The inputs of a pass on the model's device: tests make them on the host."""
    there = [x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in (*args, *named.values())]
    return tuple(there[: len(args)]), dict(zip(named, there[len(args) :], strict=True))


def laws(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[n, V] logits of a pass without a cache."""
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0]


def successor(vocab: int, cycle: list[int]) -> PreTrainedModel:
    """A Llama whose next token depends on the last one alone: it goes round in `cycle`."""
    width = -(-vocab // 8) * 8
    model = tiny(
        "llama", vocab, dtype=torch.float32, hidden_size=width, num_hidden_layers=1, **UNBOUND
    )
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(vocab, width))
    model.lm_head.weight.zero_()
    for token, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        model.lm_head.weight[following, token] = 1.0
    return model

"""A trained model to the files that `AutoModelForCausalLM.from_pretrained` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from spsbench.training.nano.llama import EPS, THETA, Llama


def rounded(model: Llama) -> Llama:
    """The model with its weights rounded, in place, to what bfloat16 can hold."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


def to_transformers(model: Llama, end: int) -> Any:
    """The same function as a `LlamaForCausalLM` in float32; `end` is the end token's id."""
    shape = model.shape
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=None,
    )
    twin = LlamaForCausalLM(config)
    weights: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embed,
        "model.norm.weight": model.norm,
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
            weights[f"{at}self_attn.{name}.weight"] = model.qkv[layer, part]
        weights[f"{at}self_attn.o_proj.weight"] = model.out[layer]
        for part, name in enumerate(("gate_proj", "up_proj")):
            weights[f"{at}mlp.{name}.weight"] = model.up[layer, part]
        weights[f"{at}mlp.down_proj.weight"] = model.down[layer]
        weights[f"{at}input_layernorm.weight"] = model.norm1[layer]
        weights[f"{at}post_attention_layernorm.weight"] = model.norm2[layer]
    weights["lm_head.weight"] = model.embed
    twin.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    twin.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end)
    return twin.eval()


def save(model: Llama, tokenizer: Any, folder: Path) -> None:
    """Write configuration, bfloat16 weights and tokenizer to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    to_transformers(model, tokenizer.eos_token_id).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

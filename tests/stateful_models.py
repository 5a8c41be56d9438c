"""Tiny random models with states, one of each family whose states transformers' cache keeps."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from spsbench.engines.session.recurrent import register_states
from spsbench.engines.session.states import feed_tokens, stock_cache
from tests.oracles import models

SIZES: dict[str, Any] = {
    **models.SIZES,
    **models.NO_IDS,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,  # tied, they repeat a token for ever
}
BOTH: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"state_size": 4}
WITHIN = {"mamba_d_state": 4, "mamba_dt_rank": 4}  # Mamba-1 in a hybrid
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8}
DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
KIMI = {
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 16,
    "num_expert_group": 1,
    "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 16}
CONV: dict[str, Any] = {"layer_types": ["conv", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**BOTH, **DELTA},
    "mamba": MAMBA,
    "lfm2": {**CONV, "block_auto_adjust_ff_dim": False},
    "mamba2": {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "jamba": {
        **WITHIN,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention"],
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "falcon_mamba": MAMBA,
    "zamba": {
        **WITHIN,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
        "layers_block_type": ["linear_attention", "hybrid"],
    },
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **BOTH,
        **MAMBA2,
        "shared_intermediate_size": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "hybrid_layer_ids": [1],
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
        "kv_channels": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_d_state": 4,
        "chunk_size": 8,
    },
    "qwen3_next": {**BOTH, **DELTA, **SHARED},
    "qwen3_5_moe_text": {**BOTH, **DELTA, **SHARED},
    "qwen4_exp_text": {
        **DELTA,
        **SHARED,
        "layer_types": ["linear_attention", "indexed_attention"],
        "hc_count": 2,
        "hc_lowrank": 8,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "olmo_hybrid": {**BOTH, **DELTA, "linear_num_key_heads": 4},
    "kimi_linear": {**BOTH, **KIMI},
    "bailing_hybrid": {**BOTH, **KIMI, "layer_group_size": 2, "first_k_dense_replace": 1},
    "lfm2_moe": {**CONV, **EXPERTS, "num_dense_layers": 1},
    "lfm3": {**CONV, "head_dim": 8, "sliding_window": None},
    "zaya": {**EXPERTS, "head_dim": 8, "router_hidden_size": 16, "num_experts_per_tok": 1},
}
"""Family -> what its tiny model is told beside the sizes; those of the fast suite first."""


def stateful(
    family: str,
    vocab: int = 12,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    noise: float = 0.0,
    scale: float = 2.0,
    registered: bool = True,
    **more: Any,
) -> PreTrainedModel:
    """A random model, whose sessions keep states unless it is not `registered`.

    With `noise` each weight is moved by that part of its spread: a draft model for the one without.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some configurations warn of what they were not given
        torch.manual_seed(seed)
        fields = {**SIZES, "vocab_size": vocab, **FAMILIES[family], **more}
        if "head_dim" not in fields:
            fields["head_dim"] = 8
        config = AutoConfig.for_model(family, **fields)
        config._experts_implementation = "eager"  # torch's products of experts take no float64
        model = AutoModelForCausalLM.from_config(config)
        for number in range(1 + bool(noise)):
            torch.manual_seed(seed + 1000 * number)
            for name, weight in model.named_parameters():
                if weight.dim() > 1 and "A_log" not in name:
                    spread = noise * weight.std() if number else scale / weight.shape[-1] ** 0.5
                    wide = torch.randn_like(weight) * spread
                    with torch.no_grad():
                        weight.copy_(weight + wide if number else wide)
    model = model.eval().to(dtype).requires_grad_(False)
    if registered:
        register_states(model)
    return model


class Oracle:
    """The stock model over its stock cache: a prefill, then one token at a time.

    A text that goes on from another one is fed from a copy of that one's cache.
    """

    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        self.model, self._start, cache = model, len(prompt) - 1, stock_cache(model)
        if self._start:
            with torch.inference_mode():
                feed_tokens(model, torch.tensor(prompt[:-1]), cache, 1)
        self._known: dict[tuple[int, ...], tuple[Tensor, DynamicCache]] = {
            tuple(prompt[:-1]): (torch.empty(0), cache)
        }

    def row(self, text: Sequence[int]) -> Tensor:
        """[V] logits after a text that begins with the prompt."""
        return self._fed(tuple(text))[0]

    def rows(self, text: Sequence[int]) -> Tensor:
        """[n, V] logits after each token from the prompt's last on."""
        ends = range(self._start + 1, len(text) + 1)
        return torch.stack([self.row(text[:end]) for end in ends])

    @torch.inference_mode()
    def _fed(self, text: tuple[int, ...]) -> tuple[Tensor, DynamicCache]:
        if text not in self._known:
            cache = copy.deepcopy(self._fed(text[:-1])[1])
            out = feed_tokens(self.model, torch.tensor(text[-1:]), cache, 1, len(text) - 1)
            self._known[text] = out.logits[0, -1].clone(), cache
        return self._known[text]

"""Tiny random models of every architecture that the engine `fast` knows."""

import warnings

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
WINDOW = {"sliding_window": 12}  # which a text crosses
UNTIED = {"head_dim": 16, "tie_word_embeddings": False}  # tied, they repeat a token
ALIKE = {"num_key_value_heads": 4}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
MODELS = {
    "bloom": {"n_head": 4, "n_layer": 2},
    "codegen": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8},
    "cohere": {},
    "cohere2": WINDOW,
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": {"head_dim": 16},
    "gemma2": {**WINDOW, **UNTIED, "attn_logit_softcapping": 5.0},
    "gemma3_text": {**WINDOW, **UNTIED},
    "glm": {"head_dim": 16},
    "gpt_bigcode": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256},
    "gpt_neox": {},
    "gpt_oss": {**WINDOW, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8},
    "granite": {},
    "helium": {"head_dim": 16},
    "mistral": {**WINDOW, "head_dim": 16},
    "mixtral": {**WINDOW, "num_local_experts": 4},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    "nemotron": {"head_dim": 16},
    "olmo": {},
    "olmo2": {},
    "olmo3": WINDOW,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi": ALIKE,
    "phi3": {**WINDOW, "original_max_position_embeddings": 256},
    "phimoe": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "qwen2_moe": {"shared_expert_intermediate_size": 32, **EXPERTS},
    "qwen3_moe": {"head_dim": 16, **EXPERTS},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": WINDOW,
}


def random_model(name, seed, **more):
    """A model in float32 with the numbers of bfloat16, as checkpoints have them."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some configurations warn of what they were not given
        torch.manual_seed(seed)
        config = AutoConfig.for_model(name, **{**SIZES, **MODELS[name], **more})
        model = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                with torch.no_grad():
                    weight.copy_(torch.randn_like(weight) * 2 / weight.shape[-1] ** 0.5)
    return model.bfloat16().float().eval().requires_grad_(False)

"""The fast engine over the decoders of the field: the tokens of eager, packed and replayed."""

import copy
import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spsbench.engines.eager import Eager
from spsbench.engines.session.engine_config import prepared
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.packing.experts import PackedExperts
from spsbench.extensions.cpu.replay.attention import NAME
from spsbench.loop.sampling import Warp
from tests.decoding import text_of
from tests.extensions.cpu.laid_out import known

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


EAGER = {"bloom"}  # a cache of another form
OF_THEIR_OWN = {"codegen", "falcon", "gptj", "mpt"}  # attention of their own, never replayed
WITH_EXPERTS = {"gpt_oss", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"}
QUICK = {
    "bloom",
    "falcon",
    "gemma2",
    "gpt_oss",
    "opt",
}
QUICK_FIRST = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS
]


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


def packed(model):
    """A copy with all layers in panels."""
    copied = copy.deepcopy(model)
    Fast().prepare(copied, known=known(copied).to_json())
    return copied


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_one_seed_gives_the_tokens_of_eager(name):
    pair = random_model(name, 0), random_model(name, 1)
    fast = packed(pair[0]), packed(pair[1])
    for warp in Warp(0), Warp(1.0):
        assert text_of(Fast(), *fast, 18, warp) == text_of(Eager(), *pair, 18, warp)
    for model in fast:
        found = prepared(model)
        assert found.choice.engine == ("eager" if name in EAGER else "fast")
        if name in EAGER:
            continue
        assert found.choice.packed_linears == found.choice.linears > 0
        assert (model.config._attn_implementation == NAME) == (name not in OF_THEIR_OWN)
        routed = any(isinstance(module, PackedExperts) for module in model.modules())
        assert routed == (name in WITH_EXPERTS)


def test_a_model_without_any_other_floats_stays_one_of_float32():
    """Norms without weights, tied embeddings: all is in panels of halves."""
    model = random_model("olmo", 0, tie_word_embeddings=True)
    fast = packed(model)
    assert prepared(fast).choice.engine == "fast"
    assert fast.dtype == torch.float32
    assert text_of(Fast(), fast, fast, 18, Warp(1.0)) == text_of(
        Eager(), model, model, 18, Warp(1.0)
    )

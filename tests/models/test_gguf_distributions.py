"""GGUF files have their model's distribution, or are refused by the key or tensor not read."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import spsbench
from spsbench.errors import DataError
from spsbench.models import folder
from spsbench.models.loader import load_model
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests import trained
from tests.oracles import models
from tests.variants import first

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

END = trained.SPECIAL[0]  # `<|endoftext|>`, which transformers' reader adds where it is missing
SIZES = {**models.SIZES, "max_position_embeddings": 256, "tie_word_embeddings": False}
KEYS = {
    "block_count": 2,
    "context_length": 256,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
THETA = {"rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **THETA}
OF_YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64, **THETA}


def scaling(**more: Any) -> dict[str, Any]:
    """Keys of `rope.scaling`."""
    return {f"rope.scaling.{name}": value for name, value in more.items()}


def llama3_factors() -> list[float]:
    """The divisors of frequencies that llama.cpp's converter writes for `LLAMA3`."""
    made = []
    for i in range(4):
        length = 2 * math.pi * 10000.0 ** (i / 4)
        if length < 64 / 4.0:
            made.append(1.0)
        elif length > 64 / 1.0:
            made.append(8.0)
        else:
            smooth = (64 / length - 1.0) / (4.0 - 1.0)
            made.append(1 / ((1 - smooth) / 8.0 + smooth))
    return made


SHORT, LONG = [1.0, 1.1, 1.3, 1.5], [1.0, 2.0, 5.0, 9.0]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **THETA}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, list[float]]]] = {
    # the model, its config, keys of the file, tensors of the file
    "plain": ("llama", {}, {}, {}),
    "llama3": (
        *("llama", {"rope_parameters": LLAMA3}, {}, {"rope_freqs.weight": llama3_factors()}),
    ),
    "other factors": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.0, 2.5, 7.0],
                "factor": 1.0,
                "long_factor": [1.0, 1.0, 2.5, 7.0],
                "attention_factor": 1.0,
                **THETA,
                "original_max_position_embeddings": 256,
            }
        },
        {},
        {"rope_freqs.weight": [1.0, 1.0, 2.5, 7.0]},
    ),
    "linear": (
        *("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}}),
        *(scaling(type="linear", factor=4.0), {}),
    ),
    "linear, as older files say it": (
        *("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **THETA}}),
        *({"rope.scale_linear": 2.0}, {}),
    ),
    "none": ("llama", {}, scaling(type="none", factor=4.0), {}),
    "yarn": ("llama", {"rope_parameters": YARN}, scaling(**OF_YARN), {}),
    "yarn of qwen2": ("qwen2", {"rope_parameters": YARN}, scaling(**OF_YARN), {}),
    "betas": (
        *("qwen3", {"rope_parameters": YARN | {"beta_fast": 8.0, "beta_slow": 2.0}}),
        {**scaling(**OF_YARN, yarn_beta_fast=8.0, yarn_beta_slow=2.0), "attention.key_length": 8},
        {},
    ),
    "two sets": (
        "phi3",
        {
            "rope_parameters": LONGROPE | {"attention_factor": 1.2, "factor": 4.0},
            "original_max_position_embeddings": 64,
            "pad_token_id": 0,
            "sliding_window": 40,
        },
        {
            **scaling(attn_factor=1.2, original_context_length=64),
            "rope.dimension_count": 8,
            "attention.sliding_window": 40,
        },
        {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
    ),
    "soft caps": (
        "gemma2",
        {"query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0, "tie_word_embeddings": True},
        {
            "attention.key_length": 8,
            "final_logit_softcapping": 5.0,
            "attn_logit_softcapping": 50.0,
            "attention.sliding_window": 4096,
        },
        {},
    ),
    "linear in full layers only": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 8,
            "tie_word_embeddings": True,
            "num_hidden_layers": 6,  # the last one is full
            "sliding_window": 40,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
        {
            **scaling(type="linear", factor=8.0),
            "block_count": 6,
            "rope.freq_base": 1e6,
            "attention.key_length": 8,
            "attention.sliding_window": 40,
        },
        {},
    ),
    "part of a head": (
        "stablelm",
        {
            "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 5e5},
            "layer_norm_eps": 1e-3,
        },
        {
            "rope.dimension_count": 4,
            "rope.freq_base": 5e5,
            "attention.layer_norm_epsilon": 1e-3,
            "attention.layer_norm_rms_epsilon": None,
        },
        {},
    ),
}


def model_of(kind: str, more: dict[str, Any]) -> Any:
    sizes = {**SIZES, "vocab_size": len(trained.tokenizer(None)), **more}
    config = AutoConfig.for_model(kind, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1)
    return model


def write(
    path: Path,
    model: Any,
    keys: dict[str, Any],
    tensors: dict[str, Any],
    end: str = END,
    pre: str = "gpt-2",
) -> Path:
    """Write the weights of a model as llama.cpp's converter does; `end` is token 0."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    kind = model.config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(str(path), kind)
    for key, value in (KEYS | keys).items():
        if value is not None:
            kind_of = gguf.GGUFValueType.get_type(value)
            writer.add_key_value(f"{kind}.{key}", value, kind_of)
    pairs = sorted(trained.tokenizer(None).get_vocab().items(), key=lambda pair: pair[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_pad_token_id(0)
    writer.add_token_list([end, *(word for word, _ in pairs[1:])])
    writer.add_token_types([3, *([1] * (len(pairs) - 1))])
    writer.add_eos_token_id(0)
    merges = json.loads(trained.tokenizer().backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    state = model.state_dict()
    for name, of_model in get_gguf_hf_weights_map(model, TensorProcessor()).items():
        weight = state[of_model].numpy()
        if kind == "llama" and (".attn_q." in name or ".attn_k." in name):
            heads = 4 if ".attn_q." in name else 2
            weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2)
            weight = weight.reshape(state[of_model].shape)
        if "gemma" in kind and "norm" in name:
            weight = weight + 1
        writer.add_tensor(name, np.ascontiguousarray(weight))
    for name, numbers in tensors.items():
        writer.add_tensor(name, np.array(numbers, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))
    return load_model(folder.locate(ModelSpec(str(path)), Access(offline=True)), ModelSpec(""))


@pytest.mark.parametrize("case", first(3, CASES))
@torch.inference_mode()
def test_a_file_has_the_distribution_of_its_model(case, tmp_path, monkeypatch):
    kind, config, keys, tensors = CASES[case]
    model = model_of(kind, config)
    read = loaded(write(tmp_path / "tiny.gguf", model, keys, tensors), monkeypatch)
    ids = torch.randint(3, 200, (1, 120), generator=torch.Generator().manual_seed(0))
    if case == "llama3":
        assert read.config.rope_parameters == model.config.rope_parameters
    for length in (60, 120):
        laws = [each(input_ids=ids[:, :length]).logits.softmax(-1) for each in (model, read)]
        assert (laws[0] - laws[1]).abs().sum(-1).max() < 1e-4


@pytest.mark.parametrize(
    ("keys", "tensors"),
    [
        ({"attention.scale": 0.5}, {}),
        ({"expert_count": 8}, {}),
        ({"logit_scale": 0.25}, {}),
        ({"attention.key_length": 16}, {}),
        ({"attention.causal": False}, {}),
        (scaling(type="exotic"), {}),
        (scaling(type="yarn", factor=2.0, yarn_log_multiplier=0.1), {}),
        ({"a.new.key": [1, 2]}, {}),
        ({}, {"blk.0.attn_q.bias": [0.0] * 32}),
        ({"rope.dimension_count": 4}, {}),
        ({}, {"rope_freqs.weight": [1.0] * 3}),
    ],
)
def test_keys_and_tensors_that_are_not_read_are_refused(keys, tensors, tmp_path, monkeypatch):
    path = write(tmp_path / "tiny.gguf", model_of("llama", {}), keys, tensors)
    with pytest.raises(DataError):
        loaded(path, monkeypatch)
    assert not list((tmp_path / "cache" / "spsbench" / "gguf").glob("*"))


@pytest.mark.parametrize(("end", "pre"), [(END, "gpt-2"), ("<|end_of_text|>", "llama-bpe")])
def test_tokens_that_a_file_does_not_list_are_none(end, pre, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "tiny.gguf", model_of("llama", {}), {}, {}, end, pre)
    pair = spsbench.load(target=str(path), drafter="ngram", engine="eager", offline=True)
    assert pair.generate("the cat", max_new_tokens=4).tokens
    tokenizer = pair.loaded.tokenizer
    assert len(tokenizer.get_vocab()) == len(trained.tokenizer(None))
    assert (
        tokenizer.encode(f"a{end}b", split_special_tokens=False)[1] == tokenizer.eos_token_id == 0
    )
    for text in ("the cat sat", "x = 1\n", END):
        assert tokenizer.decode(tokenizer.encode(text)) == text

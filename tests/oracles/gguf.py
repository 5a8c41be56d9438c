"""GGUF files of tiny models."""

import json
from types import MappingProxyType

import numpy as np
import pytest
import torch

from spsbench.models import folder
from spsbench.models.loader import load_model
from spsbench.models.source import quantise_linears
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests import trained

gguf = pytest.importorskip("gguf")


def write(path, *, architecture="llama", tokenizer=True, kinds=MappingProxyType({}), **more):
    """A Llama of two layers in Q8_0, but for matrices whose names have one of the keys."""
    made = gguf.GGUFWriter(str(path), architecture)
    names = list(trained.tokenizer(None).get_vocab().items())
    words = [word for word, _ in sorted(names, key=lambda pair: pair[1])]
    width, inner, heads = 64, 96, 4
    made.add_block_count(2)
    made.add_context_length(128)
    made.add_embedding_length(width)
    made.add_feed_forward_length(inner)
    made.add_head_count(heads)
    made.add_head_count_kv(2)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_freq_base(1e4)
    made.add_vocab_size(len(words))
    made.add_name("tiny")
    for name, value in more.items():
        made.add_uint16(name.replace("_", ".").replace("..", "_"), value)
    if tokenizer:
        made.add_tokenizer_model("gpt2")
        made.add_tokenizer_pre("gpt-2")
        made.add_token_list(words)
        made.add_token_types([3 if word in trained.SPECIAL else 1 for word in words])
        merges = json.loads(trained.tokenizer().backend_tokenizer.to_str())["model"]["merges"]
        made.add_token_merges([" ".join(pair) for pair in merges])
        made.add_bos_token_id(1)
        made.add_eos_token_id(2)
        made.add_chat_template(trained.TEMPLATE)
    draw = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(words), width), "output_norm.weight": (width,)}
    for layer in (f"blk.{i}." for i in range(2)):
        shapes |= {f"{layer}{norm}_norm.weight": (width,) for norm in ("attn", "ffn")}
        shapes |= {f"{layer}attn_{part}.weight": (width, width) for part in ("q", "output")}
        shapes |= {f"{layer}attn_{part}.weight": (width // 2, width) for part in ("k", "v")}
        shapes |= {f"{layer}ffn_{part}.weight": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{layer}ffn_down.weight": (width, inner)}
    for name, shape in shapes.items():
        plain = draw.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            made.add_tensor(name, plain)
        else:
            kind = next((kind for part, kind in kinds.items() if part in name), "Q8_0")
            kind = gguf.GGMLQuantizationType[kind]
            made.add_tensor(name, gguf.quants.quantize(plain, kind), raw_dtype=kind)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


def find(path):
    return folder.locate(ModelSpec(str(path)), Access(offline=True))


def loaded(made, weights=None, dtype="float32"):
    model = load_model(made, ModelSpec("", dtype=dtype))
    return quantise_linears(model, weights, made)


def logits(model):
    with torch.inference_mode():
        return model(input_ids=torch.arange(3, 20)[None]).logits[0]

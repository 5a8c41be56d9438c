"""A model in transformers' folder as OpenVINO's folder, or as a GGUF file for llama.cpp.

    python -m pairs.exports openvino|gguf FOLDER OUT DTYPE

runs in the interpreter that has the engines. DTYPE is float32 or bfloat16, or int8 or int4 for
quantised weights. The published converter to GGUF wants a tokenizer that it knows; these files have
none ("none"), for only ids are fed. Matrices are written in the dtype of the measurement, or all of
them in Q8_0 or Q4_0 (the head too, which llama.cpp's own program would give more bits), vectors in
float32.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

GPT2 = {
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
LLAMA = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BLOCK_LISTS = ("h", "layers")
KINDS = {"gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""transformers' kinds of models, and llama.cpp's."""
BLOCKS = {"int8": "Q8_0", "int4": "Q4_0"}
BLOCK = 32


def write(folder: Path, path: Path, dtype: str) -> None:
    """Convert `folder`.

    Raises:
        ValueError: an architecture that is none of `KINDS`.
    """
    from gguf import GGUFWriter

    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    if kind not in KINDS:
        raise ValueError(f"no GGUF of a {kind} ({folder}): expected {', '.join(KINDS)}")
    writer = GGUFWriter(path, KINDS[kind])
    _describe(writer, config)
    for name, weight in load_file(folder / "model.safetensors").items():
        tied = kind == "gpt2" or config.get("tie_word_embeddings")
        if tied and name.endswith("lm_head.weight"):
            continue  # llama.cpp takes the embeddings
        new = renamed(name, GPT2 if kind == "gpt2" else LLAMA)
        _add(writer, new, arranged(name, weight, config), dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def renamed(name: str, table: dict[str, str]) -> str:
    """Return GGUF's name of a weight.

    Raises:
        KeyError: a weight it has no name for.
    """
    parts = name.removeprefix("transformer.").removeprefix("model.").split(".")
    block = ""
    if parts[0] in BLOCK_LISTS:
        block, parts = f"blk.{parts[1]}.", parts[2:]
    whole, stem = ".".join(parts), ".".join(parts[:-1])
    return block + (table[whole] if whole in table else f"{table[stem]}.{parts[-1]}")


def arranged(name: str, weight: Tensor, config: dict[str, Any]) -> Tensor:
    """Return a weight in llama.cpp's order: [out, in], a Llama's rotary pairs side by side."""
    if ".c_" in name and weight.dim() == 2:  # transformers' Conv1D
        return weight.T.contiguous()
    if KINDS[config["model_type"]] != "llama":
        return weight
    heads: dict[str, Any] = {
        "q_proj.weight": config.get("num_attention_heads"),
        "k_proj.weight": config.get("num_key_value_heads"),
    }
    for end, count in heads.items():
        if name.endswith(end):
            rows, columns = weight.shape
            halves = weight.view(count, 2, rows // count // 2, columns)
            return halves.transpose(1, 2).reshape(rows, columns)
    return weight


def _add(writer: Any, name: str, weight: Tensor, dtype: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    wide = weight.dim() == 2 and weight.shape[-1] % BLOCK == 0 and name != "position_embd.weight"
    if dtype in BLOCKS and wide:
        blocks = GGMLQuantizationType[BLOCKS[dtype]]
        writer.add_tensor(name, quantize(weight.float().numpy(), blocks), raw_dtype=blocks)
    elif dtype == "bfloat16" and weight.dim() == 2 and name != "position_embd.weight":
        raw = weight.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, weight.float().numpy())


def _describe(writer: Any, config: dict[str, Any]) -> None:
    gpt2 = config["model_type"] == "gpt2"
    heads = config["n_head" if gpt2 else "num_attention_heads"]
    width = config["n_embd" if gpt2 else "hidden_size"]
    writer.add_context_length(config["n_positions" if gpt2 else "max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["n_layer" if gpt2 else "num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if gpt2:
        writer.add_feed_forward_length(config.get("n_inner") or 4 * width)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    rotary = config.get("rope_parameters") or {}
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config.get("head_dim") or width // heads)
    writer.add_rope_freq_base(rotary.get("rope_theta") or config.get("rope_theta") or 10_000.0)


OPENVINO: dict[str, dict[str, Any]] = {  # as its exporter has them by default, but for the group
    "int8": {"bits": 8, "sym": True},
    "int4": {"bits": 4, "sym": True, "group_size": 32, "ratio": 1.0},
}


def write_openvino(folder: Path, out: Path, dtype: str) -> None:
    """Export by optimum-intel, with the tokenizer, which the speculative pipeline wants too."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig
    from transformers import AutoTokenizer

    options: dict[str, Any] = {}  # none: as saved
    if dtype in OPENVINO:
        options["ov_config"] = OVConfig(quantization_config=OPENVINO[dtype])
    elif dtype == "float32":
        options["ov_config"] = OVConfig(dtype="fp32")
    main_export(str(folder), output=out, task="text-generation-with-past", **options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
    for model, name in zip(convert_tokenizer(tokenizer, with_detokenizer=True), names, strict=True):
        openvino.save_model(model, out / name)


if __name__ == "__main__":
    kind, source, target, dtype = sys.argv[1:]
    {"gguf": write, "openvino": write_openvino}[kind](Path(source), Path(target), dtype)

"""Pairs of models with random weights in real shapes, and a draft that often agrees.

The draft is the target's first layers under the same embeddings and head. What the target's later
layers add is scaled by one number, found by bisection, so that greedy speculation keeps as many
tokens as asked for. Decode cost does not depend on the weights' values. Both are saved once, in
bfloat16, so that every engine in either dtype runs the very same numbers.

    python -m arena.pairs FOLDER CONFIG LAYERS
"""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from arena.acceptance import K, bisect
from arena.vocabulary import numbered_tokenizer

SPREAD = 4.2  # of the logits: laws of a few nats, as a trained model's
GAIN, SHARPNESS = 0.7, 1.4  # of projections; of those to queries and keys, whose product attends
CONTEXT = 1024
OUTPUTS = ("c_proj.weight", "o_proj.weight", "down_proj.weight")  # what a layer adds comes from
OF_LAYERS = ("layer_types", "mlp_layer_types")  # of a configuration: a word for each layer
LAYERS_KEY = {"gpt2": "n_layer"}  # else num_hidden_layers

SHAPES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any], int]] = {
    # name: (configuration, its sizes, layers of the draft)
    "gpt2-large": (GPT2Config, {"n_layer": 36, "n_embd": 1280, "n_head": 20}, 3),
    "tinyllama": (
        LlamaConfig,
        {
            "num_hidden_layers": 22,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
            "max_position_embeddings": CONTEXT,
        },
        2,
    ),
    "smollm2-135m": (
        LlamaConfig,
        {
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": True,
        },
        3,
    ),
    "gpt2-xl": (GPT2Config, {"n_layer": 48, "n_embd": 1600, "n_head": 25}, 2),
    "llama-1b": (
        LlamaConfig,
        {
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": True,
        },
        2,
    ),
}


def shape(name: str) -> tuple[PreTrainedConfig, int]:
    """The configuration and the draft's layers of a named shape or a `config.json`."""
    if name in SHAPES:
        kind, sizes, layers = SHAPES[name]
        return kind(**sizes), layers
    config = AutoConfig.from_pretrained(name, local_files_only=True)
    return config, max(1, config.num_hidden_layers // 12)


def random_target(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model whose greedy texts depend on all they hold, as a trained model's do.

    As initialised, tied embeddings would make every token its own most likely successor: so layers
    add much more than embeddings do, without the constant part of their activations.
    """
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() != 2:
                continue
            inputs = 0 if ".c_" in name else 1  # Conv1D keeps [in, out], Linear [out, in]
            width = weight.shape[inputs]
            weight.normal_(std=GAIN / math.sqrt(width))
            if name.endswith(OUTPUTS):
                weight.mul_(2 / GAIN).sub_(weight.mean(inputs, keepdim=True))
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(SHARPNESS / GAIN)
            elif name.endswith("c_attn.weight"):
                weight[:, : 2 * width].mul_(SHARPNESS / GAIN)
        final_norm(model).weight.fill_(SPREAD / float(head.std()) / math.sqrt(head.shape[1]))
    return model.to(torch.bfloat16).eval().requires_grad_(False)


def final_norm(model: PreTrainedModel) -> Any:
    """The norm before the head."""
    base = model.base_model
    return base.ln_f if hasattr(base, "ln_f") else base.norm


def first_layers(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The draft: the same weights, shared, without the later layers."""
    values = target.config.to_diff_dict()
    values[LAYERS_KEY.get(target.config.model_type, "num_hidden_layers")] = layers
    for name in OF_LAYERS:
        if isinstance(found := values.get(name), list):
            values[name] = found[:layers]
    config = type(target.config)(**values)
    with torch.device("meta"):
        draft: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = target.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()}, assign=True)
    buffers = dict(target.named_buffers())  # rotary frequencies are in no state
    for name in [name for name, _ in draft.named_buffers()]:
        module, _, attribute = name.rpartition(".")
        setattr(draft.get_submodule(module), attribute, buffers[name])
    draft.tie_weights()
    return draft.eval().requires_grad_(False)


def later_outputs(target: PreTrainedModel, layers: int) -> list[Tensor]:
    """The weights through which the layers after the draft's add to the stream."""
    return [
        weight
        for name, weight in target.named_parameters()
        if name.endswith(OUTPUTS) and int(next(p for p in name.split(".") if p.isdigit())) >= layers
    ]


def make(folder: Path, config: PreTrainedConfig, layers: int) -> None:
    """Build, tune and save a pair: `target/`, `draft/` and, last of all, `pair.json`."""
    target = random_target(config)
    draft = first_layers(target, layers)
    found = bisect(target, draft, later_outputs(target, layers))
    tokenizer = numbered_tokenizer(config.vocab_size)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    sizes = {name: model.num_parameters() for name, model in (("target", target), ("draft", draft))}
    facts = {"parameters": sizes, "draft_layers": layers, "k": K, "acceptance": asdict(found)}
    (folder / "pair.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    where, which, count = sys.argv[1:]
    described, default = shape(which)
    make(Path(where), described, int(count) or default)

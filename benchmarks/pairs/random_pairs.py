"""Pairs of models with random weights in real shapes, and a draft that often agrees.

The draft is the target's first layers under the same embeddings and head. What the target's later
layers add is scaled by one number, found by bisection, so that greedy speculation keeps as many
tokens as asked for. Decode cost does not depend on the weights' values. Both are saved once, in
bfloat16, so that every engine in either dtype runs the very same numbers.

    python -m pairs.random_pairs FOLDER CONFIG LAYERS
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

SPREAD = 4.2  # of the logits: distributions of a few nats, as a trained model's
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
WIDTHS = {576: "smollm2-135m", 1280: "gpt2-large"}  # inputs of a product, and whose they are


def shape(name: str) -> tuple[PreTrainedConfig, int]:
    """Return the configuration and the draft's layers of a named shape or a `config.json`."""
    if name in SHAPES:
        kind, sizes, layers = SHAPES[name]
        return kind(**sizes), layers
    config = AutoConfig.from_pretrained(name, local_files_only=True)
    return config, max(1, config.num_hidden_layers // 12)


def random_target(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a model whose greedy texts depend on all their tokens, as a trained model's do.

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
    """Return the norm before the head."""
    base = model.base_model
    return base.ln_f if hasattr(base, "ln_f") else base.norm


def first_layers(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return the draft: the same weights, shared, without the later layers."""
    values = target.config.to_diff_dict()
    values[LAYERS_KEY.get(target.config.model_type, "num_hidden_layers")] = layers
    for name in OF_LAYERS:
        if isinstance(words := values.get(name), list):
            values[name] = words[:layers]
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
    """Return the weights through which the layers after the draft's add to the stream."""
    return [
        weight
        for name, weight in target.named_parameters()
        if name.endswith(OUTPUTS) and int(next(p for p in name.split(".") if p.isdigit())) >= layers
    ]


TAU, TOLERANCE, K = 3.5, 0.2, 4
PROMPTS, PROMPT_TOKENS, TOKENS = 8, 48, 32  # what the acceptance is measured on
TRIES = 9


@dataclass
class Acceptance:
    """How well the draft agrees along the target's greedy texts: bfloat16's weights in float32."""

    scale: float  # of what the later layers add
    tau: float  # tokens a pass at K = 4, greedy
    agreement: float  # of the two argmaxes
    alpha: float  # mean of sum_x min(p, q) at temperature 1
    entropy: float  # nats, of the target's distribution at temperature 1
    distinct: float  # tokens of a text that are not in it twice: near 1, texts do not repeat


def acceptance(target: PreTrainedModel, draft: PreTrainedModel, scale: float) -> Acceptance:
    """Measure along greedy texts, where a draft is accepted as far as both argmaxes agree."""
    source = torch.Generator().manual_seed(1)
    shape = PROMPTS, PROMPT_TOKENS
    prompts = torch.randint(target.config.vocab_size, shape, generator=source).to(target.device)
    texts = target.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS, do_sample=False
    )
    with torch.inference_mode():
        p, q = (m(input_ids=texts[:, :-1]).logits[:, PROMPT_TOKENS - 1 :] for m in (draft, target))
    agree = p.argmax(-1) == texts[:, PROMPT_TOKENS:]
    p, q = p.float().softmax(-1), q.float().softmax(-1)
    entropy = -(q * q.clamp_min(1e-30).log()).sum(-1).mean()
    overlap = torch.minimum(p, q).sum(-1).mean()
    distinct = sum(len(set(text)) for text in texts[:, PROMPT_TOKENS:].tolist()) / agree.numel()
    return Acceptance(
        scale, block_efficiency(agree.tolist(), K), float(agree.float().mean()),
        float(overlap), float(entropy), distinct,
    )  # fmt: skip


def block_efficiency(agree: list[list[bool]], k: int) -> float:
    """Return tokens a pass where slot t of a text is accepted if `agree[text][t]`."""
    tokens = passes = 0
    for text in agree:
        at = 0
        while at + k < len(text):  # a last round that the end would cut is left out
            accepted = next((i for i in range(k) if not text[at + i]), k)
            at, tokens, passes = at + accepted + 1, tokens + accepted + 1, passes + 1
    return tokens / passes


def bisect(target: PreTrainedModel, draft: PreTrainedModel, late: list[Tensor]) -> Acceptance:
    """Scale the later layers until tau is near `TAU`; the nearest try is left in place."""
    originals = [weight.clone() for weight in late]
    low, high = math.log(3e-3), math.log(0.3)  # tau falls as the later layers count for more
    best: Acceptance | None = None
    for _ in range(TRIES):
        middle = (low + high) / 2
        scale = math.exp(middle)
        rescale(late, originals, scale)
        measured = acceptance(target, draft, scale)
        print(f"scale {scale:.4f}: {measured}", file=sys.stderr)
        if best is None or abs(measured.tau - TAU) < abs(best.tau - TAU):
            best = measured
        if abs(measured.tau - TAU) <= TOLERANCE:
            break
        low, high = (middle, high) if measured.tau > TAU else (low, middle)
    if best is None:
        raise RuntimeError("no scale was tried")
    rescale(late, originals, best.scale)
    return best


def rescale(weights: list[Tensor], originals: list[Tensor], scale: float) -> None:
    """Set each weight to `scale` times its original, as bfloat16 rounds it."""
    for weight, original in zip(weights, originals, strict=True):
        weight.copy_((original * scale).bfloat16())


BYTES = 256
ADDED = "<|endoftext|>"


def numbered_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and numbered fillers, `size` tokens; none ends a text.

    A vocabulary smaller than the bytes keeps as many of them as it has. The last token is marked
    as padding, for OpenVINO's converter refuses a tokenizer without any special token; that before
    it is what transformers would add to every Qwen's.
    """
    names = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    names += [f"<{number}>" for number in range(len(names), size)]
    if size > BYTES + 2:
        names[-2] = ADDED
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=names[-1])


def make(folder: Path, config: PreTrainedConfig, layers: int) -> None:
    """Build, tune and save a pair: `target/`, `draft/` and, last of all, `pair.json`."""
    # float32 holds the weights of bfloat16, whose stock layers are slow on many processors
    target = random_target(config).float().to("cuda" if torch.cuda.is_available() else "cpu")
    draft = first_layers(target, layers)
    measured = bisect(target, draft, later_outputs(target, layers))
    tokenizer = numbered_tokenizer(config.vocab_size)
    for name, model in (("target", target), ("draft", draft)):
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    sizes = {name: model.num_parameters() for name, model in (("target", target), ("draft", draft))}
    facts = {"parameters": sizes, "draft_layers": layers, "k": K, "acceptance": asdict(measured)}
    (folder / "pair.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    where, which, count = sys.argv[1:]
    described, default = shape(which)
    make(Path(where), described, int(count) or default)

"""What a head computes, written anew from the tensors of its file and transformers' own layers.

Whole sequences, no cache, names as they are in the file; nothing of `spsbench.heads`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and float64 tensors of a head, which may be a pickle of Medusa's authors."""
    path = folder / "model.safetensors"
    held = load_file(path) if path.exists() else torch.load(folder / "medusa_lm_head.pt")
    config = json.loads((folder / "config.json").read_text())
    return config, {name: tensor.double() for name, tensor in held.items()}


def config_of(values: Mapping[str, Any]) -> PreTrainedConfig:
    kinds = {"qwen3": Qwen3Config, "qwen2": Qwen2Config}
    kind = kinds.get(values["model_type"], LlamaConfig)
    made = kind(**{key: value for key, value in values.items() if key != "architectures"})
    made._attn_implementation = "eager"
    return made


def run(part: nn.Module, config: PreTrainedConfig, x: Tensor, last: int = 0) -> Any:
    """A decoder layer or its attention over a sequence, whose `last` rows see all rows."""
    m = len(x)
    places = LlamaRotaryEmbedding(config)(x, torch.arange(m)[None])
    mask = torch.full((m, m), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
    mask[m - last :] = 0
    return part(x[None], attention_mask=mask[None, None], position_embeddings=places)[0]


def loaded(config: PreTrainedConfig, tensors: Mapping[str, Tensor], at: str, fed: int) -> nn.Module:
    """A decoder layer with the weights at `at`; without an input norm where there is none."""
    kinds = {"qwen3": Qwen3DecoderLayer, "qwen2": Qwen2DecoderLayer}
    kind = kinds.get(config.model_type, LlamaDecoderLayer)
    layer = kind(config, 0).double()
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(layer.self_attn, name)
        new = nn.Linear(fed, old.out_features, bias=old.bias is not None).double()
        setattr(layer.self_attn, name, new)
    own = {n.removeprefix(f"{at}."): t for n, t in tensors.items() if n.startswith(f"{at}.")}
    own.pop("hidden_norm.weight", None)
    if "input_layernorm.weight" not in own:
        layer.input_layernorm = nn.Identity()
    layer.load_state_dict(own)
    return layer.eval()


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def eagle(values: Mapping[str, Any], tensors: Mapping[str, Tensor], f: Tensor, e: Tensor) -> Tensor:
    """EAGLE-1: [m, H] features and embeddings -> [m, H], which the target's head reads."""
    config = config_of(values)
    x = torch.cat([e, f], -1) @ tensors["fc.weight"].T
    x = x + tensors["fc.bias"] if "fc.bias" in tensors else x
    return run(loaded(config, tensors, "layers.0", values["hidden_size"]), config, x)


def falcon(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], f: Tensor, e: Tensor
) -> Tensor:
    """Falcon: [m, H] features and embeddings -> [k, H] of the last block, gates by hand."""
    x, wide = torch.cat([e, f], -1), values["hidden_size"]
    for i in range(2):
        h, c = torch.zeros(wide, dtype=x.dtype), torch.zeros(wide, dtype=x.dtype)
        made = []
        for row in x:
            if values["recurrence"] == "none":
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            z = tensors[f"lstm.weight_ih_l{i}"] @ row + tensors[f"lstm.weight_hh_l{i}"] @ h
            if values.get("bias", True):
                z = z + tensors[f"lstm.bias_ih_l{i}"] + tensors[f"lstm.bias_hh_l{i}"]
            enter, forget, new, out = z.chunk(4)
            c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = out.sigmoid() * c.tanh()
            made.append(h)
        x = torch.stack(made)
    k, config = values["k_mask"], config_of(values)
    return run(loaded(config, tensors, "layers.0", wide), config, x, last=k)[-k:]


def eagle3(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    at: str,
    hidden: list[Tensor],
    e: Tensor,
    *,
    residual_normed: bool = False,
    each: bool = False,
    whole: bool = False,
) -> tuple[Tensor, Tensor]:
    """EAGLE-3: hidden states, [m, H] embeddings -> [m, H] before its norm, and [m, Vd] logits."""
    config, eps = config_of(values), values["rms_norm_eps"]
    if each:
        hidden = [normed(h, tensors[f"fc_norm.{i}.weight"], eps) for i, h in enumerate(hidden)]
    joined = torch.cat(hidden, -1)
    if whole:
        joined = normed(joined, tensors["input_norm.weight"], eps)
    g = joined @ tensors["fc.weight"].T
    layer = loaded(config, tensors, at, 2 * values["hidden_size"])
    calm = normed(g, tensors[f"{at}.hidden_norm.weight"], eps)
    both = torch.cat([normed(e, tensors[f"{at}.input_layernorm.weight"], eps), calm], -1)
    layer.input_layernorm = nn.Identity()
    mlp, after = layer.mlp, layer.post_attention_layernorm
    # The layer adds its input, twice as wide: only its attention is taken.
    x = (calm if residual_normed else g) + run(layer.self_attn, config, both)[0]
    x = x + mlp(after(x[None]))[0]
    for i in range(1, values["num_hidden_layers"]):
        x = run(loaded(config, tensors, f"layers.{i}", values["hidden_size"]), config, x)
    return x, normed(x, tensors["norm.weight"], eps) @ tensors["lm_head.weight"].T


def medusa(tensors: Mapping[str, Tensor], layers: int, h: Tensor) -> list[Tensor]:
    """[H] the last hidden state -> of each head [V] logits."""
    made, i = [], 0
    while f"{i}.{layers}.weight" in tensors:
        x = h
        for j in range(layers):
            at = f"{i}.{j}.linear"
            x = x + nn.functional.silu(tensors[f"{at}.weight"] @ x + tensors[f"{at}.bias"])
        made.append(tensors[f"{i}.{layers}.weight"] @ x)
        i += 1
    return made


def mlp(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], h: Tensor, tokens: list[int]
) -> list[Tensor]:
    """[H] the last hidden state, tokens from the pending one -> [V] logits after each."""
    n, d = values["n_predict"], values["inner_dim"]
    state_weight = 0.5 ** (0.5 / n)
    emb_weight = ((1 - state_weight**2) * d / 2) ** 0.5
    one = torch.ones_like(h)
    state = normed(h, one, 1e-6) / 2**0.5 if values["scale_input"] else h
    made = []
    for i, token in enumerate(tokens):
        at = {part: f"speculator.{part}.{i}" for part in ("emb", "proj", "ln", "head")}
        x = tensors[f"{at['proj']}.weight"] @ state
        x = x + (emb_weight / state_weight) * tensors[f"{at['emb']}.weight"][token]
        x = normed(x, tensors[f"{at['ln']}.weight"], 1e-6) + tensors[f"{at['ln']}.bias"]
        state = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        made.append(tensors[f"{at['head']}.weight"] @ state)
    return made


def blockwise(tensors: Mapping[str, Tensor], head: Tensor, h: Tensor) -> list[Tensor]:
    """[H] the last hidden state -> of each head [V] logits by one projection `head`."""
    made, i = [], 0
    while f"heads.{i}.up.weight" in tensors:
        at = f"heads.{i}"
        x = (tensors[f"{at}.up.weight"] @ h + tensors[f"{at}.up.bias"]).clamp(min=0)
        made.append(head @ (h + tensors[f"{at}.down.weight"] @ x + tensors[f"{at}.down.bias"]))
        i += 1
    return made


def attended(
    config: PreTrainedConfig,
    tensors: Mapping[str, Tensor],
    at: str,
    text: Tensor,
    block: Tensor,
    sees: Tensor,
) -> Tensor:
    """Attention of [B, H] rows of a block over [n, H] rows of the text and themselves, by hand."""
    heads, shared, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    n, m, eps = len(text), len(block), config.rms_norm_eps
    cos, sin = (part[0] for part in LlamaRotaryEmbedding(config)(text, torch.arange(n + m)[None]))

    def made(name: str, x: Tensor, count: int) -> Tensor:
        return (x @ tensors[f"{at}.{name}_proj.weight"].T).view(len(x), count, dim)

    def turned(x: Tensor, places: slice) -> Tensor:
        low, high = x[..., : dim // 2], x[..., dim // 2 :]
        return x * cos[places, None] + torch.cat([-high, low], -1) * sin[places, None]

    q = turned(
        normed(made("q", block, heads), tensors[f"{at}.q_norm.weight"], eps), slice(n, n + m)
    )
    both = torch.cat([text, block])
    k = turned(
        normed(made("k", both, shared), tensors[f"{at}.k_norm.weight"], eps), slice(0, n + m)
    )
    v = made("v", both, shared)
    out = torch.zeros(m, heads, dim, dtype=block.dtype)
    for h in range(heads):
        own = h * shared // heads
        weights = (q[:, h] @ k[:, own].T / dim**0.5).masked_fill(~sees, -torch.inf).softmax(-1)
        out[:, h] = weights @ v[:, own]
    return out.reshape(m, -1) @ tensors[f"{at}.o_proj.weight"].T


def dflash(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    hidden: list[Tensor],
    e: Tensor,
    windows: tuple[int, ...],
) -> Tensor:
    """[n, H] hidden states of the text, [B, H] embeddings of the block -> [B, H] normed rows."""
    config, eps = config_of(values), values["rms_norm_eps"]
    text = normed(
        torch.cat(hidden, -1) @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], eps
    )
    x, (n, m) = e, (len(text), len(e))
    for i, window in enumerate(windows):
        at = f"layers.{i}"
        sees = torch.ones(m, n + m, dtype=torch.bool)
        if window:
            for row in range(m):
                for seen in range(n + m):
                    sees[row, seen] = n - window <= seen <= n + row
        calm = normed(x, tensors[f"{at}.input_layernorm.weight"], eps)
        x = x + attended(config, tensors, f"{at}.self_attn", text, calm, sees)
        calm = normed(x, tensors[f"{at}.post_attention_layernorm.weight"], eps)
        gate, up, down = (
            tensors[f"{at}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        x = x + (nn.functional.silu(calm @ gate.T) * (calm @ up.T)) @ down.T
    return normed(x, tensors["norm.weight"], eps)


def dspark_bias(
    tensors: Mapping[str, Tensor], kind: str, before: list[int], rows: Tensor
) -> list[Tensor]:
    """Tokens before each row, [n, H] rows, from where the recurrence begins -> [Vd] biases."""
    w1, w2 = (tensors[f"markov_head.markov_{name}.weight"] for name in ("w1", "w2"))
    state, made = torch.zeros_like(w1[0]), []
    for token, row in zip(before, rows, strict=True):
        x = w1[token]
        if kind == "gated":
            at = "markov_head.gate_proj"
            gate = tensors[f"{at}.weight"] @ torch.cat([row, x]) + tensors[f"{at}.bias"]
            x = gate.sigmoid() * x
        elif kind == "rnn":
            at = "markov_head.joint_proj"
            z = tensors[f"{at}.weight"] @ torch.cat([state, x, row]) + tensors[f"{at}.bias"]
            gate, new, out = z.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
            x = out.tanh()
        made.append(w2 @ x)
    return made


def mtp(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    names: tuple[str, str, str, str],
    at: str,
    f: Tensor,
    e: Tensor,
    feature_first: bool,
) -> Tensor:
    """[m, H] features and embeddings -> [m, H], by names of `fc` and of three norms."""
    eps = values["rms_norm_eps"]
    fc, of_e, of_f, last = (tensors[f"{name}.weight"] for name in names)
    if feature_first:  # MiMo: the embedding of the first row is 0
        e = torch.cat([torch.zeros_like(e[:1]), e[1:]])
    both = [normed(e, of_e, eps), normed(f, of_f, eps)]
    x = torch.cat(both[::-1] if feature_first else both, -1) @ fc.T
    kind = {**values, "model_type": "qwen2" if values["model_type"] == "mimo" else "qwen3"}
    config = config_of(kind)
    own = {f"layer.{n.removeprefix(at)}": t for n, t in tensors.items() if n.startswith(at)}
    others = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
    own = {n: t for n, t in own.items() if not any(part in n for part in others)}
    return normed(run(loaded(config, own, "layer", values["hidden_size"]), config, x), last, eps)

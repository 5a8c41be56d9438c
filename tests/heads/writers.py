"""A writer for each format of a head, with random weights in the shapes of a tiny target.

Each makes a folder in exactly the names and keys of the public writers: SafeAILab/EAGLE, SpecForge
and SGLang, AngelSlim, vllm-project/speculators. What they write is what the readers must read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

INNER, DRAFT_VOCAB = 24, 7


def sizes(target: PreTrainedModel, **more: Any) -> dict[str, Any]:
    """The config of a Llama of one layer, as wide as the target."""
    text = target.config.get_text_config()
    return {
        "model_type": "llama",
        "hidden_size": text.hidden_size,
        "intermediate_size": INNER,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": 512,
        **more,
    }


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random weights, large enough for peaked distributions; norms near 1."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        numbers = torch.randn(shape, generator=draw, dtype=torch.float32)
        if len(shape) == 1:
            made[name] = numbers * 0.2 + ("norm" in name)
        else:
            made[name] = numbers * (3.0 if "lm_head" in name else 1.0) / shape[-1] ** 0.5
    return made


def layer(config: Mapping[str, Any], at: str, fed: int, normed: bool) -> dict[str, tuple[int, ...]]:
    """The weights of a Llama layer, with `fed` inputs of its attention."""
    wide, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim", wide // heads)
    shared, inner = config["num_key_value_heads"] * dim, config["intermediate_size"]
    made = {
        f"{at}.self_attn.q_proj.weight": (heads * dim, fed),
        f"{at}.self_attn.k_proj.weight": (shared, fed),
        f"{at}.self_attn.v_proj.weight": (shared, fed),
        f"{at}.self_attn.o_proj.weight": (wide, heads * dim),
        f"{at}.mlp.gate_proj.weight": (inner, wide),
        f"{at}.mlp.up_proj.weight": (inner, wide),
        f"{at}.mlp.down_proj.weight": (wide, inner),
        f"{at}.post_attention_layernorm.weight": (wide,),
    }
    if normed:
        made[f"{at}.input_layernorm.weight"] = (wide,)
    if config["model_type"].startswith("qwen3"):
        made |= {f"{at}.self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    return made


def embeddings(target: PreTrainedModel) -> Tensor:
    """The target's rows; an engine may have replaced its module by one without a weight."""
    ids = torch.arange(target.config.get_text_config().vocab_size, device=target.device)
    return target.get_input_embeddings()(ids).detach().float().cpu()


def eagle_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    wide, vocab = config["hidden_size"], config["vocab_size"]
    made = {"embed_tokens.weight": (vocab, wide), "fc.weight": (wide, 2 * wide)}
    if config.get("bias", True):
        made["fc.bias"] = (wide,)
    return made | layer(config, "layers.0", wide, normed=False)


def eagle(folder: Path, target: PreTrainedModel, pickle: bool = False, **more: Any) -> Path:
    """EAGLE-1, EAGLE-2 and HASS; the embeddings are those of the target."""
    config = sizes(target, architectures=["LlamaForCausalLM"], **more)
    tensors = drawn(eagle_shapes(config))
    tensors["embed_tokens.weight"] = embeddings(target)
    return written(folder, config, tensors, pickle)


def first_layer(config: Mapping[str, Any], at: str) -> dict[str, tuple[int, ...]]:
    wide = config["hidden_size"]
    return {f"{at}.hidden_norm.weight": (wide,), **layer(config, at, 2 * wide, normed=True)}


def eagle3_shapes(
    config: Mapping[str, Any], at: str, features: int = 3, target_width: int | None = None
) -> dict[str, tuple[int, ...]]:
    wide = config["hidden_size"]
    return {
        "fc.weight": (wide, features * (target_width or wide)),
        **first_layer(config, at),
        "norm.weight": (wide,),
        "lm_head.weight": (config.get("draft_vocab_size", config["vocab_size"]), wide),
    }


def maps(vocab: int, draft: int) -> dict[str, Tensor]:
    """Every second token or so, from 1 on, as offsets, none of them 0, and as a mask."""
    ids = torch.linspace(1, vocab - 1, draft).long()
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(draft), "t2d": mask}


def eagle3(folder: Path, target: PreTrainedModel, pickle: bool = False, **more: Any) -> Path:
    """EAGLE-3 as its authors write it: `midlayer`, offsets, a head over the commonest tokens."""
    config = sizes(target, architectures=["LlamaForCausalLM"], draft_vocab_size=DRAFT_VOCAB, **more)
    tensors = drawn(eagle3_shapes(config, "midlayer")) | maps(config["vocab_size"], DRAFT_VOCAB)
    return written(folder, config, tensors, pickle)


def specforge(folder: Path, target: PreTrainedModel, outputs: list[int], **more: Any) -> Path:
    """EAGLE-3 as SpecForge writes it for SGLang: embeddings too, layer ids of outputs."""
    config = sizes(
        target,
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=DRAFT_VOCAB,
        tie_word_embeddings=False,
        eagle_config={"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True},
        **more,
    )
    wide = target.config.hidden_size
    shapes = eagle3_shapes(config, "midlayer", len(outputs), wide)
    shapes["embed_tokens.weight"] = (config["vocab_size"], config["hidden_size"])
    return written(folder, config, drawn(shapes) | maps(config["vocab_size"], DRAFT_VOCAB))


def eagle31(folder: Path, target: PreTrainedModel, **more: Any) -> Path:
    """EAGLE-3.1: a norm for each hidden state, names with `model.`, and no map."""
    config = sizes(target, architectures=["Eagle3LlamaForCausalLM"], fc_norm=True, **more)
    wide = config["hidden_size"]
    shapes = eagle3_shapes(config, "layers.0") | {f"fc_norm.{i}.weight": (wide,) for i in range(3)}
    return written(folder, config, {f"model.{n}": t for n, t in drawn(shapes).items()})


def about(kind: str) -> dict[str, Any]:
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/tiny", "architectures": ["LlamaForCausalLM"]},
    }


def speculators(
    folder: Path,
    target: PreTrainedModel,
    ids: list[int] | None = None,
    layers: int = 1,
    inner: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """EAGLE-3 as vllm-project/speculators writes it, of Qwen3 layers."""
    layer_config = sizes(target, model_type="qwen3", head_dim=8, num_hidden_layers=layers)
    layer_config |= inner or {}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": ids,
        "transformer_layer_config": layer_config,
        "speculators_config": about("eagle3"),
        **more,
    }
    config = {key: value for key, value in config.items() if value != "absent"}
    flat = layer_config | {"draft_vocab_size": config["draft_vocab_size"]}
    shapes = eagle3_shapes(flat, "layers.0", 3 if ids is None else len(ids))
    for i in range(1, layers):
        shapes |= layer(layer_config, f"layers.{i}", layer_config["hidden_size"], normed=True)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (flat["hidden_size"],) for i in range(3)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (shapes["fc.weight"][1],)
    shapes["embed_tokens.weight"] = (flat["vocab_size"], flat["hidden_size"])
    return written(folder, config, drawn(shapes) | maps(flat["vocab_size"], DRAFT_VOCAB))


def medusa(
    folder: Path, target: PreTrainedModel, heads: int = 3, layers: int = 1, dialect: str = "Medusa"
) -> Path:
    """As its authors write it, whose configs say 2 heads, or as vLLM and TGI do."""
    text = target.config.get_text_config()
    wide, vocab = text.hidden_size, text.vocab_size
    config: dict[str, Any] = {"medusa_num_heads": 2, "medusa_num_layers": layers}
    config |= {"base_model_name_or_path": "org/tiny"}
    block, head = "{h}.{j}.linear", f"{{h}}.{layers}"
    if dialect == "vLLM":
        config = {"model_type": "medusa", "hidden_size": wide, "vocab_size": vocab}
        config |= {"num_heads": heads, "num_hidden_layers": layers, "truncated_vocab_size": 5}
        block, head = "blocks.{h}.layers.{j}", "lm_heads.{h}"
    rows = 5 if dialect == "vLLM" else vocab
    shapes: dict[str, tuple[int, ...]] = {}
    for h in range(heads):
        for j in range(layers):
            shapes[block.format(h=h, j=j) + ".weight"] = (wide, wide)
            if dialect != "vLLM":
                shapes[block.format(h=h, j=j) + ".bias"] = (wide,)
        shapes[head.format(h=h) + ".weight"] = (rows, wide)
    tensors = drawn(shapes)
    if dialect == "vLLM":
        tensors["token_map"] = torch.linspace(1, vocab - 1, rows).long()
    return written(folder, config, tensors, pickle=dialect == "Medusa", called="medusa_lm_head.pt")


def mlp(
    folder: Path, target: PreTrainedModel, stages: int = 3, tied: str = "", scaled: bool = True
) -> Path:
    """As IBM writes it; tied weights under every name (`copies`) or the first ones (`firsts`)."""
    text = target.config.get_text_config()
    wide, vocab, inner = text.hidden_size, text.vocab_size, INNER
    config = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": wide,
        "inner_dim": inner,
        "n_predict": stages,
        "scale_input": scaled,
        "tie_weights": bool(tied),
        "top_k_tokens_per_head": [4, 3, 2],
        "vocab_size": vocab,
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(stages):
        shapes |= {
            f"speculator.emb.{i}.weight": (vocab, inner),
            f"speculator.proj.{i}.weight": (inner, inner if i else wide),
            f"speculator.head.{i}.weight": (vocab, inner),
            f"speculator.ln.{i}.weight": (inner,),
            f"speculator.ln.{i}.bias": (inner,),
        }
    tensors = drawn(shapes)
    for name in list(tensors) if tied else ():
        _, part, i, rest = name.split(".")
        first = min(int(i), 1) if part == "proj" else 0
        tensors[name] = tensors[f"speculator.{part}.{first}.{rest}"].clone()
        if tied == "firsts" and int(i) > first:
            del tensors[name]
    return written(folder, config, tensors)


def block_shapes(config: Mapping[str, Any], features: int) -> dict[str, tuple[int, ...]]:
    wide = config["hidden_size"]
    made: dict[str, tuple[int, ...]] = {
        "fc.weight": (wide, features * wide),
        "hidden_norm.weight": (wide,),
        "norm.weight": (wide,),
    }
    for i in range(config["num_hidden_layers"]):
        made |= layer(config, f"layers.{i}", wide, normed=True)
    return made


def markov_shapes(
    config: Mapping[str, Any], kind: str, rank: int, rows: int
) -> dict[str, tuple[int, ...]]:
    wide = config["hidden_size"]
    made: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (config["vocab_size"], rank),
        "markov_head.markov_w2.weight": (rows, rank),
        "confidence_head.proj.weight": (1, wide + rank),
        "confidence_head.proj.bias": (1,),
    }
    if kind == "gated":
        made["markov_head.gate_proj.weight"] = (rank, wide + rank)
        made["markov_head.gate_proj.bias"] = (rank,)
    elif kind == "rnn":
        made["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + wide)
        made["markov_head.joint_proj.bias"] = (3 * rank,)
    return made


def dflash(
    folder: Path, target: PreTrainedModel, block: int = 4, coupling: str = "", **more: Any
) -> Path:
    """DFlash as z-lab writes it, or DSpark: neither embeddings nor a head."""
    config = sizes(target, model_type="qwen3", head_dim=8, num_hidden_layers=2, **more)
    own: dict[str, Any] = {"mask_token_id": 1, "target_layer_ids": [1, 3]}
    if coupling:
        own |= {"projector_type": "dspark", "markov_rank": 4, "markov_head_type": coupling}
    config |= {
        "architectures": ["DFlashDraftModel"],
        "block_size": block,
        "dflash_config": own,
        "num_target_layers": target.config.num_hidden_layers,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
    }
    shapes = block_shapes(config, 2)
    if coupling:
        shapes |= markov_shapes(config, coupling, 4, config["vocab_size"])
    return written(folder, config, drawn(shapes))


def block_speculators(
    folder: Path, target: PreTrainedModel, coupling: str = "", window: int = 0, **more: Any
) -> Path:
    """DFlash, or DSpark with `coupling`, as vllm-project/speculators writes it."""
    inner = sizes(target, model_type="qwen3", head_dim=8, num_hidden_layers=2)
    kinds = ["sliding_attention" if window else "full_attention", "full_attention"]
    inner |= {"layer_types": kinds, "sliding_window": window or None}
    kind = "dspark" if coupling else "dflash"
    config = {
        "architectures": ["DSparkSpeculator" if coupling else "DFlashSpeculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "block_size": 4,
        "aux_hidden_state_layer_ids": [2, 4],
        "mask_token_id": 1,
        "sliding_window_non_causal": False,
        "sample_from_anchor": bool(coupling),
        "transformer_layer_config": inner,
        "speculators_config": about(kind),
        **({"markov_rank": 4, "markov_head_type": coupling} if coupling else {}),
        **more,
    }
    shapes = block_shapes(inner, 2)
    if coupling:
        shapes |= markov_shapes(inner, coupling, 4, DRAFT_VOCAB)
    shapes["lm_head.weight"] = (DRAFT_VOCAB, inner["hidden_size"])
    shapes["embed_tokens.weight"] = (inner["vocab_size"], inner["hidden_size"])
    return written(folder, config, drawn(shapes) | maps(inner["vocab_size"], DRAFT_VOCAB))


LAST = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
OF_QWEN = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
MTP = {
    "speculators": ("qwen3", "mtp_layers.0", [f"mtp_layers.0.{n}" for n in LAST]),
    "MiMo": ("mimo", "model.mtp_layers.0", [f"model.mtp_layers.0.{n}" for n in LAST]),
    "Qwen": ("qwen3", "mtp.layers.0", [f"mtp.{n}" for n in OF_QWEN]),
}
"""Of each dialect: the kind of its layer, where that is, and the names of fc and of the norms."""


def mtp(folder: Path, target: PreTrainedModel, dialect: str = "speculators") -> Path:
    """An MTP layer, cut out by speculators, or inside the files of MiMo or of Qwen."""
    kind, at, names = MTP[dialect]
    inner = sizes(target, model_type=kind, head_dim=8)
    wide = inner["hidden_size"]
    shapes = {f"{name}.weight": (wide,) for name in names}
    shapes[f"{names[0]}.weight"] = (wide, 2 * wide)
    shapes |= layer(inner, at, wide, normed=True)
    if dialect == "MiMo":
        for name, rows in (("q", 32), ("k", 16), ("v", 16)):
            shapes[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
    if dialect != "speculators":
        shapes["model.embed_tokens.weight"] = (inner["vocab_size"], wide)
        return written(folder, inner, drawn(shapes))
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": inner,
        "speculators_config": {"verifier": {"name_or_path": "org/tiny"}},
    }
    return written(folder, config, drawn(shapes))


def blockwise(
    folder: Path, target: PreTrainedModel, heads: int = 3, own_head: bool = False
) -> Path:
    """In our own format: there is no public one."""
    text = target.config.get_text_config()
    wide, vocab = text.hidden_size, text.vocab_size
    config = {"model_type": "blockwise", "hidden_size": wide, "inner_size": INNER}
    config |= {"vocab_size": vocab, "num_heads": heads, "base_model_name_or_path": "org/tiny"}
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(heads):
        shapes |= {
            f"heads.{i}.up.weight": (INNER, wide),
            f"heads.{i}.up.bias": (INNER,),
            f"heads.{i}.down.weight": (wide, INNER),
            f"heads.{i}.down.bias": (wide,),
        }
    if own_head:
        shapes["lm_head.weight"] = (vocab, wide)
    return written(folder, config, drawn(shapes))


def falcon(
    folder: Path, target: PreTrainedModel, k: int = 2, recurrence: str = "text", **more: Any
) -> Path:
    """As its authors write it, and the key that says how its LSTM is run; "" leaves that out."""
    config = sizes(target, architectures=["LlamaForCausalLM"], k_mask=k, **more)
    if recurrence:
        config["recurrence"] = recurrence
    wide = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(2):
        shapes[f"lstm.weight_ih_l{i}"] = (4 * wide, wide if i else 2 * wide)
        shapes[f"lstm.weight_hh_l{i}"] = (4 * wide, wide)
        if config.get("bias", True):
            shapes |= {f"lstm.bias_{part}_l{i}": (4 * wide,) for part in ("ih", "hh")}
    tensors = drawn(shapes | layer(config, "layers.0", wide, normed=False))
    for name in tensors:
        if name.startswith("lstm.weight"):
            tensors[name] *= 2  # gates that open and shut
    tensors["embed_tokens.weight"] = embeddings(target)
    return written(folder, config, tensors)


def peagle(folder: Path, target: PreTrainedModel, **more: Any) -> Path:
    """P-EAGLE as speculators writes it: two layers, a mask for features and one for tokens."""
    made = speculators(
        folder,
        target,
        layers=2,
        speculators_model_type="peagle",
        architectures=["PEagleSpeculator"],
        mask_token_id=3,
        para_depths=4,
        **more,
    )
    tensors = load_file(made / "model.safetensors")
    wide = tensors["fc.weight"].shape[1]
    tensors["mask_hidden"] = drawn({"mask": (1, 1, wide)})["mask"] * wide**0.5
    save_file(tensors, made / "model.safetensors")
    return made


def written(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    pickle: bool = False,
    called: str = "pytorch_model.bin",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if pickle:
        torch.save(whole, folder / called)
    else:
        save_file(whole, folder / "model.safetensors")
    return folder


@torch.no_grad()
def fitted(folder: Path, target: PreTrainedModel, texts: list[list[int]]) -> Path:
    """EAGLE-1 that really foretells: `fc` is a linear fit of the next feature, its layer adds 0."""
    given, wanted = [], []
    for ids in texts:
        out = target(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        features = out.hidden_states[-1][0].double().cpu()
        embedded = embeddings(target)[ids].double()
        given.append(torch.cat([embedded[1:], features[:-1]], -1))
        wanted.append(features[1:])
    x, y = torch.cat(given), torch.cat(wanted)
    pull = x.T @ x + 1e-3 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    config = sizes(target, architectures=["LlamaForCausalLM"], bias=False)
    tensors = drawn(eagle_shapes(config))
    tensors["fc.weight"] = torch.linalg.solve(pull, x.T @ y).T.float().contiguous()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{name}.weight"].zero_()
    tensors["embed_tokens.weight"] = embeddings(target)
    return written(folder, config, tensors)

"""Heads of DFlash and DSpark as z-lab and SpecForge write them, and as speculators does.

Sources: z-lab/dflash, sgl-project/SpecForge, vllm-project/speculators `dflash/core.py` and
`dspark/model_definitions.py`. The first two have `dflash_config`, whose `target_layer_ids` are
outputs of layers, hidden state i + 1; speculators has the sizes in `transformer_layer_config` and
numbers hidden states. Domino and DFlash2 have tensors that nothing here reads, and are refused.
"""

from collections.abc import Mapping
from typing import Any

from spsbench.errors import DataError, UsageError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import (
    MANY,
    BlockShape,
    Description,
    Trained,
    layer_shape,
    whole,
)
from spsbench.models.heads.formats.eagle3 import ids
from spsbench.models.heads.formats.format import (
    FRONTS,
    Format,
    Shapes,
    as_filed,
    has,
    layer_parameters,
    layers_in,
    tensor_names,
)
from spsbench.models.heads.formats.speculators import part, verifier

COUPLINGS = ("vanilla", "gated", "rnn")
CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")
MARKOV = "markov_head.markov_w1.weight"


def knows_dflash(files: Checkpoint) -> bool:
    """Return whether this is a block-diffusion head without a coupling."""
    return block(files) and not knows_dspark(files)


def knows_dspark(files: Checkpoint) -> bool:
    """Return whether this is a block-diffusion head with a coupling."""
    return files.config.get("speculators_model_type") == "dspark" or (
        block(files) and has(files, MARKOV)
    )


def block(files: Checkpoint) -> bool:
    """Return whether this is a block-diffusion head."""
    said = files.config.get("speculators_model_type")
    if said is not None:
        return said in ("dflash", "dspark")
    return has(files, "hidden_norm.weight") and has(files, "layers.0.self_attn.q_proj.weight")


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe layers over the features of the text and a block of masks."""
    config, where = files.config, files.config_path
    theirs = "speculators_model_type" in config
    inner = part(config, "transformer_layer_config", where) if theirs else config
    nested: Mapping[str, Any] = {} if theirs else (config.get("dflash_config") or {})
    said = {**nested, **{key: value for key, value in config.items() if value is not None}}
    layer = as_filed(files, layer_shape(inner, where))
    depth = layers_in(files, inner, where)
    coupled = knows_dspark(files)
    rank = whole(said, "markov_rank", where, 256) if coupled and said.get("markov_rank") != 0 else 0
    kind = str(said.get("markov_head_type") or "vanilla")
    if rank and kind not in COUPLINGS:
        raise DataError(
            f"markov_head_type {kind!r} ({where}): expected one of {', '.join(COUPLINGS)}. Such "
            "heads are not known"
        )
    vocab = whole(inner, "vocab_size", where)
    mask = said.get("mask_token_id")
    if type(mask) is not int or not 0 <= mask < vocab:
        raise DataError(
            f"mask_token_id is {mask!r} ({where}): expected a token below {vocab}. Check `draft`"
        )
    shape = BlockShape(
        layer=layer,
        depth=depth,
        windows=windows(inner, depth, where),
        looks_ahead=bool(said.get("sliding_window_non_causal", False)),
        features=features(files, said, theirs, (layers, depth)),
        target_width=whole(said, "target_hidden_size", where, layer.width),
        block=whole(said, "block_size", where, most=MANY),
        mask=mask,
        from_first=bool(said.get("sample_from_anchor", coupled)),
        vocab=vocab,
        draft_vocab=whole(said, "draft_vocab_size", where, vocab) if theirs else vocab,
        rank=rank,
        coupling=kind if rank else "",
        own_head=has(files, "lm_head.weight"),
        own_embedding=has(files, "embed_tokens.weight"),
    )
    if shape.block < 2:
        raise DataError(f"block_size is {shape.block} ({where}): expected 2 or more. Check `draft`")
    shapes = parameters(shape)
    for name, size in (("d2t", shape.draft_vocab), ("t2d", shape.vocab)):
        if has(files, name) or (name == "d2t" and shape.draft_vocab != vocab):
            shapes[name] = (size,)
    names = tensor_names(files, shapes, {"stack": "layers"}, FRONTS)
    spare = dict.fromkeys(CONFIDENCE, "how sure it is: schedules ask the laws") if coupled else {}
    spare = {name: why for name, why in spare.items() if name in files.headers}
    trained = Trained(
        verifier(config) if theirs else None, shape.target_width, vocab, max(shape.features)
    )
    family, writer = "dspark" if coupled else "dflash", "speculators" if theirs else "z-lab"
    return Description(family, writer, shape, trained, names, shapes, spare)


def parameters(shape: BlockShape) -> Shapes:
    """Return names and shapes of the weights of `DFlashNetwork`, or `DSparkNetwork`."""
    layer, rank = shape.layer, shape.rank
    shapes: Shapes = {
        "fc.weight": (layer.width, len(shape.features) * shape.target_width),
        "hidden_norm.weight": (layer.width,),
        "norm.weight": (layer.width,),
    }
    for i in range(shape.depth):
        shapes |= layer_parameters(layer, f"stack.{i}", layer.width)
    if shape.own_head:
        shapes["lm_head.weight"] = (shape.draft_vocab, layer.width)
    if shape.own_embedding:
        shapes["embed_tokens.weight"] = (shape.vocab, layer.width)
    if rank:
        shapes[MARKOV] = (shape.vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (shape.draft_vocab, rank)
    if shape.coupling == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, layer.width + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    elif shape.coupling == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + layer.width)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    return shapes


def windows(config: Mapping[str, Any], depth: int, where: str) -> tuple[int, ...]:
    """Return how many tokens before the block each layer attends to; 0 = all."""
    kinds = config.get("layer_types") or ["full_attention"] * depth
    if len(set(kinds)) == 1:
        kinds = kinds[:1] * depth
    if len(kinds) != depth:
        raise DataError(
            f"layer_types has {len(kinds)} entries ({where}): expected {depth}, one a layer. Check "
            "`draft`"
        )
    return tuple(
        whole(config, "sliding_window", where) if kind == "sliding_attention" else 0
        for kind in kinds
    )


def features(
    files: Checkpoint, said: Mapping[str, Any], theirs: bool, depths: tuple[int | None, int]
) -> tuple[int, ...]:
    """Return the hidden states that the head reads, by default DFlash's own for these depths."""
    where = files.config_path
    listed = ids(said.get("aux_hidden_state_layer_ids"), where)
    if not theirs:
        listed = [i + 1 for i in ids(said.get("target_layer_ids"), where)]
    if listed:
        return tuple(listed)
    layers = depths[0] if depths[0] is not None else said.get("num_target_layers")
    if not isinstance(layers, int):
        raise UsageError(
            f"{files.folder} does not say which hidden states it reads: expected target_layer_ids "
            "in config.json. Write them there, counted from 0 as outputs of layers"
        )
    draft_depth = depths[1]
    if draft_depth == 1:
        return (layers // 2 + 1,)
    return tuple(round(1 + i * (layers - 4) / (draft_depth - 1)) + 1 for i in range(draft_depth))


DFLASH = Format("z-lab", "dflash", knows_dflash, describe)
DSPARK = Format("z-lab", "dspark", knows_dspark, describe)

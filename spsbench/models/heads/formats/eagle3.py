"""Heads of EAGLE-3 and 3.1 as EAGLE, SpecForge, SGLang and AngelSlim write them.

Sources: SafeAILab/EAGLE `cnets.py`, sgl-project/SpecForge `llama3_eagle.py`, and SGLang's
`llama_eagle3.py`. The layer is `midlayer` or `layers.0`, with or without `model.` before it. `d2t`
holds offsets. Layer ids of SpecForge and SGLang, in `eagle_config`, are those of a layer's output,
hidden state i + 1; vLLM's, at the top level, number hidden states as transformers does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.errors import DataError, UsageError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import (
    Description,
    Eagle3Shape,
    Trained,
    layer_shape,
    whole,
)
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

RENAMED = {"stack.0": "midlayer layers.0", "stack": "layers"}
IDS = "eagle_aux_hidden_state_layer_ids"


def knows(files: Checkpoint) -> bool:
    """Return whether the first layer has a norm of features, and speculators did not write it."""
    named = {
        f"{front}{at}.hidden_norm.weight" for front in FRONTS for at in ("midlayer", "layers.0")
    }
    return "speculators_model_type" not in files.config and bool(named & files.headers.keys())


def describe(files: Checkpoint, layers: int | None) -> Description:
    """Describe one layer of 2H over `fc`, perhaps with plain layers after it."""
    config, where = files.config, files.config_path
    layer = as_filed(files, layer_shape(config, where))
    width = whole(config, "target_hidden_size", where, layer.width)
    eagle_config = config.get("eagle_config")
    nested = eagle_config if isinstance(eagle_config, Mapping) else {}
    listed = [i + 1 for i in ids(nested.get(IDS), where)] or ids(config.get(IDS), where)
    shape = Eagle3Shape(
        layer=layer,
        features=features(files, listed, width, layers),
        target_width=width,
        draft_vocab=whole(config, "draft_vocab_size", where, whole(config, "vocab_size", where)),
        vocab=whole(config, "vocab_size", where),
        depth=layers_in(files, config, where),
        normed_residual=answered(files, "residual", bool(config.get("norm_before_residual"))),
        normed_feedback=answered(files, "feedback", False),
        norm_output=bool(config.get("norm_output", True)),
        norm_each=bool(config.get("fc_norm")),
        own_head=has(files, "lm_head.weight"),
        own_embedding=has(files, "embed_tokens.weight"),
    )
    forged = bool(nested) or files.kind == "LlamaForCausalLMEagle3"
    writer = "SpecForge" if forged else "EAGLE"
    return described(files, shape, writer, None)


def described(
    files: Checkpoint, shape: Eagle3Shape, writer: str, name: str | None, family: str = "eagle3"
) -> Description:
    """Describe a head of this shape, whatever names its tensors have."""
    shapes = parameters(shape)
    if shape.draft_vocab != shape.vocab or has(files, "d2t"):
        shapes["d2t"] = (shape.draft_vocab,)
    if has(files, "t2d"):
        shapes["t2d"] = (shape.vocab,)
    if not shape.own_embedding and shape.layer.width != shape.target_width:
        raise DataError(
            f"no embed_tokens.weight ({files.folder}): expected embeddings of its own, as it is "
            f"{shape.layer.width} wide and its target {shape.target_width}. Fetch it again"
        )
    names = tensor_names(files, shapes, RENAMED, FRONTS)
    trained = Trained(name, shape.target_width, shape.vocab, max(shape.features))
    return Description(family, writer, shape, trained, names, shapes, {})


def parameters(shape: Eagle3Shape) -> Shapes:
    """Return names and shapes of the weights of `Eagle3Network`."""
    layer, read = shape.layer, len(shape.features) * shape.target_width
    shapes: Shapes = {
        "fc.weight": (layer.width, read),
        "stack.0.hidden_norm.weight": (layer.width,),
        **layer_parameters(layer, "stack.0", 2 * layer.width),
        "norm.weight": (layer.width,),
    }
    for i in range(1, shape.depth):
        shapes |= layer_parameters(layer, f"stack.{i}", layer.width)
    if shape.norm_each:
        shapes |= {f"fc_norm.{i}.weight": (shape.target_width,) for i in range(len(shape.features))}
    if shape.norm_all:
        shapes["input_norm.weight"] = (read,)
    if shape.own_head:
        shapes["lm_head.weight"] = (shape.draft_vocab, layer.width)
    if shape.mask_token is not None:
        shapes["mask_hidden"] = (1, 1, read)
    if shape.own_embedding:
        shapes["embed_tokens.weight"] = (shape.vocab, layer.width)
    return shapes


def features(
    files: Checkpoint, listed: Sequence[int], width: int, layers: int | None
) -> tuple[int, ...]:
    """Return the hidden states that a head reads: the user's, the listed, or EAGLE-3's three."""
    chosen = counted(files.answers.get("features", "")) or tuple(listed)
    fc = next(
        (files.headers[f + "fc.weight"] for f in FRONTS if f + "fc.weight" in files.headers), None
    )
    read = fc.shape[1] // width if fc is not None and len(fc.shape) == 2 else 3
    if not chosen and read == 3 and layers is not None:
        chosen = default_features(layers)
    if not chosen:
        raise UsageError(
            f"{files.folder} does not say which {read} hidden states it reads: expected {IDS} in "
            "config.json. Say it: `drafter` eagle3:features=2-16-29, counted as transformers does"
        )
    if len(chosen) != read:
        raise DataError(
            f"{len(chosen)} hidden states, and an fc for {read} ({files.folder}): expected as many "
            f"in {IDS}. Fetch it again"
        )
    return chosen


def counted(said: Any) -> tuple[int, ...]:
    """Parse hidden states as a user writes them, `2-16-29`."""
    parts = str(said).split("-") if said != "" else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"eagle3:features={said}: expected hidden states such as 2-16-29. Count them as "
            "transformers does, 0 being the embeddings"
        )
    return tuple(map(int, parts))


def default_features(layers: int) -> tuple[int, ...]:
    """Return the hidden states of the paper's code, for a target of `layers` layers."""
    return 2, layers // 2, layers - 3


def ids(value: Any, where: str) -> list[int]:
    """Return the layer numbers in a config value, none for None."""
    if value is None:
        return []
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        raise DataError(f"{IDS} is {value!r} ({where}): expected numbers of layers. Check `draft`")
    return value


def answered(files: Checkpoint, question: str, default: bool) -> bool:
    """Return the user's answer (`raw` or `normed`), by default the file's."""
    said = files.answers.get(question, "")
    return default if not said else said == "normed"


EAGLE3 = Format("EAGLE", "eagle3", knows, describe)

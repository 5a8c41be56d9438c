"""The interface of a format, and helpers that several formats share."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import MANY, Description, LayerShape, whole

Shapes = dict[str, tuple[int, ...]]
LAYER = re.compile(r"(?:model\.)?(?:midlayer|layers\.(\d{1,4}))\.")
FRONTS = ("", "model.")  # what stands before names: vLLM's copies have the second


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a head to files."""

    writer: str
    family: str  # the drafter that reads it
    knows: Callable[[Checkpoint], bool]  # by its config and the names of its tensors
    describe: Callable[[Checkpoint, int | None], Description]
    """A checkpoint that it knows, and the number of layers of the target where it is known."""
    inside: bool = False  # a part of a language model's own files, which may be a draft model, too


def layer_parameters(shape: LayerShape, at: str, fed: int, normed: bool = True) -> Shapes:
    """Return names and shapes of the weights of `layers.Layer` at `at`; attention reads `fed`."""
    rows, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    shapes: Shapes = {
        f"{attention}.q_proj.weight": (rows, fed),
        f"{attention}.k_proj.weight": (shared, fed),
        f"{attention}.v_proj.weight": (shared, fed),
        f"{attention}.o_proj.weight": (shape.width, rows),
        f"{mlp}.gate_proj.weight": (shape.inner, shape.width),
        f"{mlp}.up_proj.weight": (shape.inner, shape.width),
        f"{mlp}.down_proj.weight": (shape.width, shape.inner),
        f"{at}.post_attention_layernorm.weight": (shape.width,),
    }
    if normed:
        shapes[f"{at}.input_layernorm.weight"] = (shape.width,)
    if shape.qk_norm:
        shapes |= {f"{attention}.{name}_norm.weight": (shape.head_dim,) for name in "qk"}
    if shape.qkv_bias:
        shapes |= {
            f"{attention}.{name}_proj.bias": (rows if name == "q" else shared,) for name in "qkv"
        }
    if shape.out_bias:
        shapes[f"{attention}.o_proj.bias"] = (shape.width,)
    if shape.mlp_bias:
        shapes |= {f"{mlp}.{name}_proj.bias": (shape.inner,) for name in ("gate", "up")}
        shapes[f"{mlp}.down_proj.bias"] = (shape.width,)
    return shapes


def layers_in(files: Checkpoint, config: Mapping[str, Any], where: str) -> int:
    """Return the number of layers in the file; configs of published heads copy their target's."""
    stated = whole(config, "num_hidden_layers", where, 1, most=MANY)
    numbers = {int(m[1] or 0) for name in files.headers if (m := LAYER.match(name))}
    return max(numbers) + 1 if numbers else stated


def as_filed(files: Checkpoint, layer: LayerShape) -> LayerShape:
    """Return the shape of the layers with what the tensors of the first say of it.

    Biases, norms of queries and keys, the inner width and the number of heads are often copied from
    the target's config.
    """
    stems = (f"{front}{word}." for front in FRONTS for word in ("midlayer", "layers.0"))
    at = next((stem for stem in stems if f"{stem}self_attn.q_proj.weight" in files.headers), None)
    if at is None:
        return layer
    names = {name.removeprefix(at) for name in files.headers if name.startswith(at)}

    def rows(name: str, otherwise: int) -> int:
        return files.shape(at + name)[0] if name in names else otherwise

    heads, left = divmod(rows("self_attn.q_proj.weight", 0), layer.head_dim)
    kv_heads, kv_left = divmod(rows("self_attn.k_proj.weight", 0), layer.head_dim)
    fits = heads and kv_heads and not left and not kv_left and heads % kv_heads == 0
    return replace(
        layer,
        inner=rows("mlp.gate_proj.weight", layer.inner),
        heads=heads if fits else layer.heads,
        kv_heads=kv_heads if fits else layer.kv_heads,
        qkv_bias="self_attn.q_proj.bias" in names,
        out_bias="self_attn.o_proj.bias" in names,
        mlp_bias="mlp.gate_proj.bias" in names,
        qk_norm="self_attn.q_norm.weight" in names,
    )


def tensor_names(
    files: Checkpoint, parameters: Iterable[str], renamed: Mapping[str, str], fronts: Iterable[str]
) -> dict[str, str]:
    """Map each parameter to its tensor in the file, by any of the names that writers use.

    Args:
        files: the head.
        parameters: of the network.
        renamed: beginnings of their names -> what writers put in their place, parted by spaces.
        fronts: what may stand before a name, such as `model.`.
    """
    names: dict[str, str] = {}
    front, words = "", dict[str, str]()  # as the last one found has them: a writer is consistent
    lacking: dict[str, str] = {}
    for parameter in parameters:
        prefix = next((key for key in renamed if within(parameter, key)), None)
        suffix = parameter.removeprefix(prefix or "")
        stems = (
            [parameter] if prefix is None else [word + suffix for word in renamed[prefix].split()]
        )
        there = [(f, stem) for stem in stems for f in fronts if f + stem in files.headers]
        if len(there) > 1:
            raise DataError(
                f"{''.join(there[0])} and {''.join(there[1])} are one weight ({files.folder}): "
                "expected it once. Fetch it again"
            )
        if not there:
            lacking[parameter] = prefix or ""
            continue
        front = there[0][0]
        names[parameter] = "".join(there[0])
        if prefix is not None:
            words[prefix] = there[0][1].removesuffix(suffix)
    for parameter, prefix in lacking.items():
        word = words.get(prefix, renamed[prefix].split()[0]) if prefix else ""
        names[parameter] = front + word + parameter.removeprefix(prefix)
    return names


def has(files: Checkpoint, name: str) -> bool:
    """Return whether a tensor exists, with or without a prefix."""
    return any(front + name in files.headers for front in FRONTS)


def target_of(config: Mapping[str, Any], key: str = "base_model_name_or_path") -> str | None:
    """Return the name of the target that the config states, if any."""
    name = config.get(key)
    return name if isinstance(name, str) and name else None


def within(parameter: str, key: str) -> bool:
    """Return whether a parameter is `key`, or one of its parts."""
    return parameter == key or parameter.startswith(f"{key}.")

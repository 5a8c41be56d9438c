"""JSON files of a model folder: size limits, and checks of config.json before any weight."""

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.tables import read_table
from spsbench.untrusted import POINTER, cut, is_finite_number, read_json

CONFIG_LIMIT, TOKENIZER_LIMIT = 4 << 20, 200 << 20  # bytes of a file

# The names that the families use for one size, and the most that is believed of it.
WIDTH = ("hidden_size", "n_embd", "d_model")
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
SHARED = ("num_key_value_heads",)
INNER = ("intermediate_size", "n_inner", "ffn_dim")
_LARGEST: Mapping[tuple[str, ...], int] = {
    WIDTH: 1 << 17,
    DEPTH: 1 << 10,
    ("vocab_size",): 1 << 23,
    HEADS: 1 << 12,
    SHARED: 1 << 12,
    ("head_dim",): 1 << 13,
    INNER: 1 << 20,
    ("max_position_embeddings", "n_positions"): 1 << 28,
}

HEAD_DIMS = ("head_dim", "qk_head_dim", "qk_nope_head_dim", "kv_lora_rank")
"""Keys of a config whose heads have widths of their own; the last ones are of latent attention."""

_MAY_BE_NULL = ("num_key_value_heads", "head_dim", "n_inner", "intermediate_size")

_REFUSED: Mapping[str, str] = read_table(__file__, "refused.toml")

NEUTRAL: Mapping[str, list[object]] = read_table(__file__, "neutral.toml")
"""Generation settings that change probabilities or end a text, and their values of no effect."""

OF_HEADS = ("speculators_model_type", "medusa_num_heads")  # keys that no language model has

STATES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
"""Kinds of layers that keep states, by transformers' names."""

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Sizes of a model that every rank has an equal part of."""


def expand_path(name: str) -> Path:
    """Return `name` as a path, with `~` and `$VAR` replaced."""
    return Path(os.path.expanduser(os.path.expandvars(name)))


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """Return the JSON object in `path`; NaN and Infinity pass, since configurations have them.

    SpsError: missing, not readable, more than `limit` bytes, or no JSON. DataError: no object.
    """
    value = read_json(path, f"the {path.name} of a model", limit=limit, strict=False)
    if not isinstance(value, dict):
        raise DataError(
            f"{path.name} holds a {type(value).__name__} ({path}): expected a JSON object. "
            "Fetch the model again"
        )
    return value


def refuse_pointer(path: Path) -> None:
    """Raise DataError if `path` is a pointer of Git LFS; what is no file or not readable passes."""
    if not path.is_file():  # a pipe would wait for its writer; its reader says what it is
        return
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise DataError(
                f"{path.name} is a pointer of Git LFS ({path}): expected the file itself. Run "
                "git lfs pull, or fetch the model again"
            )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the object in `folder`'s config.json; SpsError: missing, too large or no object."""
    return read_object(folder / "config.json", CONFIG_LIMIT)


def names_head(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` has a key that only drafting heads have."""
    return any(key in config for key in OF_HEADS)


def check_config(config: Mapping[str, Any], where: Path, *, trust_remote_code: bool) -> None:
    """Raise DataError for what cannot be loaded as a decoder-only language model.

    Refused are no `model_type` (as in many drafting heads; a head that has one, as EAGLE's, is not
    told from a model), a type or flag of another kind, sizes out of range, also in a `text_config`,
    and code of the model's own, which transformers lacks, without `trust_remote_code`.
    """
    kind = config.get("model_type")
    if not kind and names_head(config):
        raise DataError(
            f"a head, which drafts for another model ({where}): expected a language model. Name "
            "the head with `draft`, without `drafter`, and its target with `target`"
        )
    if not isinstance(kind, str) or not kind:
        raise DataError(
            f"config.json names no model_type ({where}): expected one such as llama or gpt2. "
            "Check that the folder holds a language model"
        )
    _check_family(kind, config, where)
    if _needs_remote_code(kind, config) and not trust_remote_code:
        raise DataError(
            f"{kind} is Python code of the model's own ({where}): expected an architecture of "
            "transformers. Read that code, then add `trust_remote_code` with a pinned `revision`"
        )
    _check_sizes(config, where)
    text = config.get("text_config")
    if isinstance(text, dict):
        _check_sizes(text, where)


def embedding_and_layers(config: Mapping[str, Any]) -> int:
    """Return a lower bound of the parameters: embeddings, two matrices a layer; 0: no width."""
    text = config.get("text_config")
    sizes = text if isinstance(text, dict) and "vocab_size" not in config else config
    width, layers = first_size(sizes, WIDTH), first_size(sizes, DEPTH)
    vocab, inner = first_size(sizes, ("vocab_size",)), first_size(sizes, INNER)
    return width * (vocab + layers * (width + inner))


def _check_family(kind: str, config: Mapping[str, Any], where: Path) -> None:
    """Raise DataError where `kind` is in `_REFUSED`, or `is_encoder_decoder` is true."""
    descriptions = [what for what, kinds in _REFUSED.items() if kind in kinds.split()]
    if config.get("is_encoder_decoder") is True:
        descriptions = [*descriptions, "an encoder-decoder model"]
    if descriptions:
        raise DataError(
            f"{kind} is {descriptions[0]} ({where}): expected a decoder-only language model. "
            "Choose one such as llama, qwen2 or gpt2"
        )


def _needs_remote_code(kind: str, config: Mapping[str, Any]) -> bool:
    """Return whether a model has an `auto_map` and transformers has no code for its `kind`."""
    return bool(config.get("auto_map")) and not in_transformers(kind)


def in_transformers(kind: str) -> bool:
    """Return whether the installed transformers has this `model_type`, without importing it."""
    spec = find_spec("transformers")
    homes = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    name = kind.replace("-", "_").removesuffix("_text")  # a text model of a family that sees, too
    return name.isidentifier() and any((h / "models" / name).is_dir() for h in homes)


def first_size(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the value of the first of `names` that is an integer; 0: none is."""
    sizes = (config[name] for name in names if type(config.get(name)) is int)
    return next(sizes, 0)


def _check_sizes(config: Mapping[str, Any], where: Path) -> None:
    """Raise DataError for sizes out of range or not dividing each other, or a bad `rms_norm_eps`.

    Heads must divide the width, unless one of `HEAD_DIMS` is set, and key-value heads the heads. A
    size passes that is absent, null where `_MAY_BE_NULL` has it, or a list of `intermediate_size`;
    the epsilon if it is absent or any finite number.
    """
    for names, largest in _LARGEST.items():
        for name in names:
            value = config.get(name)
            if name not in config or (value is None and name in _MAY_BE_NULL):
                continue
            if name == "intermediate_size" and isinstance(value, list):
                continue  # one size a layer
            if type(value) is not int or not 1 <= value <= largest:
                raise DataError(
                    f"{name} is {cut(repr(value), 40)} in config.json ({where}): "
                    f"expected an integer from 1 to {largest}. Fetch the model again"
                )
    width, heads = first_size(config, WIDTH), first_size(config, HEADS)
    has_own_dims = any(config.get(name) is not None for name in HEAD_DIMS)
    if width and heads and not has_own_dims and width % heads:
        raise DataError(
            f"{heads} heads do not divide a width of {width} in config.json ({where}): "
            "expected a multiple. Fetch the model again"
        )
    shared = first_size(config, SHARED)
    if heads and shared and heads % shared:
        raise DataError(
            f"{shared} key-value heads do not divide {heads} heads in config.json ({where}): "
            "expected a divisor. Fetch the model again"
        )
    eps = config.get("rms_norm_eps", 1e-6)
    if not is_finite_number(eps):
        raise DataError(
            f"rms_norm_eps is {cut(repr(eps), 40)} in config.json ({where}): expected a small "
            "number. Fetch the model again"
        )


def check_shareable(kind: Any, config: Any, ranks: int, folder: Path) -> None:
    """Raise DataError for a model that `ranks`, 2 or more, cannot share; no weights are read.

    `kind` is its class, `config` what transformers reads. Refused are None as `kind` (packed
    weights, or a part of a larger model), layers that keep states, a family for which transformers
    has no plan of tensor parallelism, and sizes that `ranks` does not divide.
    """
    name = type(config).__name__.removesuffix("Config")
    if kind is None:
        raise DataError(
            f"{name} with packed weights, or within a larger model, cannot be shared by ranks "
            f"({folder}): expected plain weights. Start one process"
        )
    if STATES & {*(getattr(config, "layer_types", None) or ())}:
        raise DataError(
            f"{name} keeps states in its layers, which ranks cannot share yet ({folder}): "
            "expected attention in all layers. Start one process"
        )
    if not getattr(config, "base_model_tp_plan", None):
        raise DataError(
            f"transformers has no plan to share {name} by ranks ({folder}): expected a model with "
            "one, such as Llama, Mistral, Qwen or Gemma. Start one process"
        )
    check_divisible({field: getattr(config, field, None) for field in DIVIDED}, ranks, folder)


def check_divisible(config: Mapping[str, Any], ranks: int, folder: Path) -> None:
    """Raise DataError unless `ranks` divides `DIVIDED` of `config`; absent or no integer passes."""
    for field in DIVIDED:
        count = config.get(field)
        if isinstance(count, int) and count % ranks:
            raise DataError(
                f"{field} is {count} ({folder}): expected a multiple of the {ranks} ranks. "
                "Start another number of them"
            )


def hidden_settings(folder: Path) -> dict[str, Any]:
    """Return name -> value of settings in `generation_config.json` that change tokens or their end.

    They are those of `NEUTRAL`, as temperature, that have an effect, and all keys with a dot, of a
    GGUF file, which its unpacking wrote there. {}: no such file. SpsError: no JSON object.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    settings = read_object(path, 1 << 20)
    keys = {name: value for name, value in settings.items() if "." in name}
    return keys | {
        name: settings[name]
        for name, neutral in NEUTRAL.items()
        if settings.get(name) is not None and settings[name] not in neutral
    }

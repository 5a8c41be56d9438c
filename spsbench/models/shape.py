"""Draft models of any width and depth in the target's architecture (Chen et al. 2023, Table 2).

A wide model of few layers and a narrow model of many may hold as many parameters and yet take
different times: the layers of a token run one after another at any width. Random weights take the
time of trained weights; how often a trained draft would be right is not known from them.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from spsbench.checkpoints.config import DEPTH, HEADS, INNER, SHARED, WIDTH, first_size
from spsbench.errors import UsageError
from spsbench.hardware.files import cache_home
from spsbench.models.third_party import silence
from spsbench.settings.models import Shape

STEP = 8  # widths of inner layers are multiples of it
AS_WIDE = ("word_embed_proj_dim",)  # has the width of the layers
DROPPED = ("quantization_config", "auto_map", "_name_or_path", "architectures")


def shaped_folder(target: Path, shape: Shape) -> Path:
    """Write the configuration of a draft of this shape to the user's cache; return its folder.

    Architecture and vocabulary are those of the `config.json` in the folder `target`. The file is
    written once. UsageError: that has no sizes to change.
    """
    with silence():
        config = AutoConfig.from_pretrained(target, local_files_only=True)
    text = json.dumps(with_shape(text_config(config), shape), sort_keys=True)
    folder = cache_home() / "shapes" / f"{shape}-{sha256(text.encode()).hexdigest()[:16]}"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{os.getpid()}.part"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / "config.json")
    return folder


def text_config(config: Any) -> dict[str, Any]:
    """Return the values of a language model's configuration."""
    values: dict[str, Any] = json.loads(config.get_text_config().to_json_string(use_diff=False))
    return values


def with_shape(values: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """Return a new configuration of the same architecture in another shape.

    Head width stays where the model width allows, the ratio of query to key-value heads and the
    proportion of the inner layer stay, and values listed by layer are cut or repeated to the new
    depth. UsageError: `values` name no width, depth or heads.
    """
    config = {name: value for name, value in values.items() if name not in DROPPED}
    width, depth, heads = (_size(values, names) for names in (WIDTH, DEPTH, HEADS))
    head_width = values.get("head_dim") or width // heads
    n_heads = next(
        n
        for n in range(max(1, shape.width // head_width), 0, -1)
        if shape.width % n == 0 and shape.width // n % 2 == 0
    )
    group = heads // (first_size(values, SHARED) or heads)
    shared = next(n for n in range(max(1, n_heads // group), 0, -1) if n_heads % n == 0)
    sizes = (WIDTH, shape.width), (DEPTH, shape.depth), (HEADS, n_heads), (SHARED, shared)
    for names, value in sizes:
        config |= {name: value for name in names if values.get(name) is not None}
    for name in INNER:
        if isinstance(values.get(name), int):
            config[name] = max(STEP, round(values[name] * shape.width / width / STEP) * STEP)
    config |= dict.fromkeys(set(AS_WIDE) & config.keys(), shape.width)
    if values.get("head_dim"):
        config["head_dim"] = shape.width // n_heads
    for name, value in values.items():
        if isinstance(value, list) and len(value) == depth and depth > 1:
            config[name] = [value[i % depth] for i in range(shape.depth)]
    return config


def _size(values: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the value of the first of `names` that is an integer; UsageError: none is."""
    if size := first_size(values, names):
        return size
    raise UsageError(
        f"a shape of {values.get('model_type')}: expected a configuration with {names[0]}. "
        "Choose another target"
    )

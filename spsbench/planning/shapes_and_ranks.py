"""Drafts of other shapes (Chen et al. 2023, Table 2).

A wide model of few layers and a narrow model of many may hold as many parameters and yet take
different times: the layers of a token run one after another at any width. Shapes are measured with
random weights, which take the time of trained weights; acceptance remains unknown.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel

from spsbench.errors import UsageError
from spsbench.methods.resolve import resolve
from spsbench.metrics.costs import Costs
from spsbench.models.cache import Loaded
from spsbench.planning.forecast.links_and_shapes import (
    STEP,
    Shape,
    ShapeCost,
)
from spsbench.planning.measure import CostProgress, measure, weights_of
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.cell_from_options import DEFAULT_K
from spsbench.settings.labels import drafting
from spsbench.settings.models import RANDOM, ModelSpec
from spsbench.spec import Spec

SIZES, REQUESTED = (1, 2, 3, 5, 9), (1, 4, 8)
CONTEXT = 256
SECONDS = 30.0

WIDTH = ("hidden_size", "n_embd", "d_model")
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
SHARED = ("num_key_value_heads",)
INNER = ("intermediate_size", "n_inner", "ffn_dim")
AS_WIDE = ("word_embed_proj_dim",)  # has the width of the layers
DROPPED = ("quantization_config", "auto_map", "_name_or_path", "architectures")


def shape_of(config: Any) -> Shape:
    """Return the shape in a transformers configuration."""
    values = plain(config)
    return Shape(first(values, WIDTH), first(values, DEPTH))


def plain(config: Any) -> dict[str, Any]:
    """Return the values of a language model's configuration."""
    values: dict[str, Any] = json.loads(config.get_text_config().to_json_string(use_diff=False))
    return values


def reshaped(values: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """Return a configuration of the same architecture in another shape.

    Head width stays where the model width allows, the ratio of query to key-value heads and the
    proportion of the inner layer stay, and values listed by layer are extended to the new depth.
    """
    config = {name: value for name, value in values.items() if name not in DROPPED}
    width, depth = first(values, WIDTH), first(values, DEPTH)
    heads = first(values, HEADS)
    head_width = values.get("head_dim") or width // heads
    n_heads = next(
        n
        for n in range(max(1, shape.width // head_width), 0, -1)
        if shape.width % n == 0 and shape.width // n % 2 == 0
    )
    group = heads // next((values[n] for n in SHARED if values.get(n)), heads)
    shared = next(n for n in range(max(1, n_heads // group), 0, -1) if n_heads % n == 0)
    for names, value in (
        (WIDTH, shape.width),
        (DEPTH, shape.depth),
        (HEADS, n_heads),
        (SHARED, shared),
    ):
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


def measure_shapes(
    cell: Cell,
    load: Callable[[Cell], Loaded],
    shapes: Iterable[Shape],
    text: Sequence[int],
    *,
    context: int = CONTEXT,
    seconds: float = SECONDS,
    watch: Callable[[CostProgress], None] = lambda pace: None,
) -> tuple[Costs, list[ShapeCost]]:
    """Measure the costs of drafts of some shapes, and of the draft model of the cell, if any.

    Args:
            cell: resolved; its target gives vocabulary and architecture, its sampling the
            distributions.
        load: of a model cache.
        text: token ids for the target to read.

    Raises:
        SpsError: a shape that the architecture cannot have, or that memory cannot hold.
    """
    target = load(cell).target
    values, draft = plain(target.config), cell.models.draft
    unshaped = [cell] if draft and not draft.random and load(cell).draft is not None else []
    with TemporaryDirectory(prefix="spsbench-shapes-") as temporary:
        shaped = []
        for shape in shapes:
            folder = Path(temporary) / str(shape)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(reshaped(values, shape)))
            shaped.append(_with(cell, folder))
        pairs = [(c, load(c)) for c in (*unshaped, *shaped)]
        costs = measure(
            pairs,
            text,
            contexts=[context],
            sizes=SIZES,
            requested=REQUESTED,
            seconds=seconds,
            watch=watch,
        )
    passing = {str(c.models.draft) for c in shaped}
    models = {name: it for name, it in costs.setting["models"].items() if name not in passing}
    rows = [
        _row(c, loaded.draft, "" if c in shaped or draft is None else draft.id)
        for c, loaded in pairs
        if loaded.draft is not None
    ]
    return replace(costs, setting={**costs.setting, "models": models}), rows


def _row(cell: Cell, draft: PreTrainedModel, model: str) -> ShapeCost:
    weights = weights_of(draft)
    numbers, read = (None, None) if weights is None else weights
    return ShapeCost(shape_of(draft.config), model, drafting(cell), numbers, read)


def _with(cell: Cell, folder: Path) -> Cell:
    """Return the cell with a draft of random weights from a folder, run as its target is."""
    target = cell.models.target
    spec = ModelSpec(
        str(folder),
        weights=RANDOM,
        engine=target.engine,
        device=target.device,
        dtype=target.dtype,
        attention=target.attention,
    )
    method = {"drafter": Spec("model"), "verifier": AUTO, "schedule": constant(DEFAULT_K)}
    return resolve(cell.but(draft=spec, **method))


def first(values: Mapping[str, Any], names: Iterable[str]) -> int:
    """Return the first of `names` that the configuration has."""
    sizes = (values[name] for name in names if isinstance(values.get(name), int))
    size: int | None = next(sizes, None)
    if size is None:
        raise UsageError(
            f"`shapes` with {values.get('model_type')}: expected a configuration with "
            f"{next(iter(names))}. Choose another target"
        )
    return size

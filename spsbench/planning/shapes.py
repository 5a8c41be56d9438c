"""What drafts of other shapes would cost here (the question of Chen et al. 2023, Table 2).

A wide model of few layers and a narrow one of many may hold as many numbers, and yet take unlike
times: the layers of a token follow each other, whatever their width. Shapes are measured with
random weights, which take the time of trained ones; how often they would be right, that cannot say.
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
from spsbench.models.cache import Loaded
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.shape import STEP, Shape, ShapeCost
from spsbench.planning.measure import Pace, measure
from spsbench.planning.reading import weights_of
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.cell_from_options import DEFAULT_K
from spsbench.settings.labels import drafting
from spsbench.settings.models import RANDOM, ModelSpec
from spsbench.spec import Spec

SIZES, ASKED = (1, 2, 3, 5, 9), (1, 4, 8)
CONTEXT = 256
SECONDS = 30.0

WIDTH = ("hidden_size", "n_embd", "d_model")
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
SHARED = ("num_key_value_heads",)
INNER = ("intermediate_size", "n_inner", "ffn_dim")
AS_WIDE = ("word_embed_proj_dim",)  # must be as wide as the layers
DROPPED = ("quantization_config", "auto_map", "_name_or_path", "architectures")


def shape_of(config: Any) -> Shape:
    """Of a transformers configuration."""
    values = plain(config)
    return Shape(first(values, WIDTH), first(values, DEPTH))


def plain(config: Any) -> dict[str, Any]:
    """The values of a language model's configuration."""
    values: dict[str, Any] = json.loads(config.get_text_config().to_json_string(use_diff=False))
    return values


def reshaped(values: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """A configuration of the same kind in another shape.

    Heads stay as wide as they are where the width allows it, keys and values are shared by as many
    heads, the inner layer keeps its proportion, and what is told layer by layer is told again.
    """
    made = {name: value for name, value in values.items() if name not in DROPPED}
    width, depth = first(values, WIDTH), first(values, DEPTH)
    heads = first(values, HEADS)
    told = values.get("head_dim") or width // heads
    own = next(
        n
        for n in range(max(1, shape.width // told), 0, -1)
        if shape.width % n == 0 and shape.width // n % 2 == 0
    )
    group = heads // next((values[n] for n in SHARED if values.get(n)), heads)
    shared = next(n for n in range(max(1, own // group), 0, -1) if own % n == 0)
    for names, value in (
        (WIDTH, shape.width),
        (DEPTH, shape.depth),
        (HEADS, own),
        (SHARED, shared),
    ):
        made |= {name: value for name in names if values.get(name) is not None}
    for name in INNER:
        if isinstance(values.get(name), int):
            made[name] = max(STEP, round(values[name] * shape.width / width / STEP) * STEP)
    made |= dict.fromkeys(set(AS_WIDE) & made.keys(), shape.width)
    if values.get("head_dim"):
        made["head_dim"] = shape.width // own
    for name, value in values.items():
        if isinstance(value, list) and len(value) == depth and depth > 1:
            made[name] = [value[i % depth] for i in range(shape.depth)]
    return made


def measure_shapes(
    cell: Cell,
    load: Callable[[Cell], Loaded],
    shapes: Iterable[Shape],
    text: Sequence[int],
    *,
    context: int = CONTEXT,
    seconds: float = SECONDS,
    watch: Callable[[Pace], None] = lambda pace: None,
) -> tuple[Costs, list[ShapeCost]]:
    """The costs of drafts of some shapes, and of the draft model that the cell has, if any.

    Args:
        cell: resolved; its target gives vocabulary and kind of architecture, its sampling the laws.
        load: a model_cache's.
        text: token ids for the target to read.

    Raises:
        SpsError: a shape that this kind of model cannot have, or that memory cannot hold.
    """
    target = load(cell).target
    values, draft = plain(target.config), cell.models.draft
    own = [cell] if draft and not draft.random and load(cell).draft is not None else []
    with TemporaryDirectory(prefix="spsbench-shapes-") as temporary:
        made = []
        for shape in shapes:
            folder = Path(temporary) / str(shape)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(reshaped(values, shape)))
            made.append(_with(cell, folder))
        pairs = [(each, load(each)) for each in (*own, *made)]
        costs = measure(
            pairs,
            text,
            contexts=[context],
            sizes=SIZES,
            asked=ASKED,
            seconds=seconds,
            watch=watch,
        )
    passing = {str(each.models.draft) for each in made}
    models = {name: it for name, it in costs.setting["models"].items() if name not in passing}
    rows = [
        _row(each, loaded.draft, "" if each in made or draft is None else draft.id)
        for each, loaded in pairs
        if loaded.draft is not None
    ]
    return replace(costs, setting={**costs.setting, "models": models}), rows


def _row(cell: Cell, draft: PreTrainedModel, model: str) -> ShapeCost:
    weights = weights_of(draft)
    numbers, read = (None, None) if weights is None else weights
    return ShapeCost(shape_of(draft.config), model, drafting(cell), numbers, read)


def _with(cell: Cell, folder: Path) -> Cell:
    """The same with a draft of random weights in the shape of a folder, run as its target is."""
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
    """The first of `names` that the configuration has."""
    sizes = (values[name] for name in names if isinstance(values.get(name), int))
    found: int | None = next(sizes, None)
    if found is None:
        raise UsageError(
            f"--shapes with {values.get('model_type')}: expected a configuration with "
            f"{next(iter(names))}. Choose another target"
        )
    return found

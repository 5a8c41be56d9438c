"""Drafts of other shapes, and placements over ranks (Chen et al. 2023, Table 2).

A wide model of few layers and a narrow model of many may hold as many parameters and yet take
different times: the layers of a token run one after another at any width. Shapes are measured with
random weights, which take the time of trained weights; acceptance remains unknown.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, PreTrainedModel

from spsbench.errors import DataError, UsageError
from spsbench.methods.resolve import resolve
from spsbench.metrics.costs import PLAIN, Costs
from spsbench.models.cache import Loaded
from spsbench.models.config import check_shareable
from spsbench.models.loader import plain_class
from spsbench.models.third_party import silent
from spsbench.planning.forecast.links_and_shapes import (
    STEP,
    Link,
    Shape,
    ShapeCost,
    Sizes,
    over_ranks,
)
from spsbench.planning.forecast.tables import Placement
from spsbench.planning.inputs import ForecastInputs
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


class RankForecasts(NamedTuple):
    """Forecasts over ranks: placements (one rank first), sizes of the target, and notes."""

    placements: list[Placement]
    target: Sizes
    notes: list[str]


def forecast_ranks(
    inputs: ForecastInputs, most: int, link: Link, locate: Callable[[Any], Path]
) -> RankForecasts:
    """Forecast a plan on 1, 2, 4 ... `most` ranks, the draft model on rank 0 and shared.

    Args:
        locate: from a model's spec to its folder; no weights are read.

    Raises:
        DataError: a target that cannot be shared, or costs without its number format.
        UsageError: the costs contain no drafter.
    """
    costs, models = inputs.costs, inputs.costs.setting.get("models", {})
    target_spec = inputs.cells[0].models.target
    folder = locate(target_spec)
    target = sizes_of(folder, models.get("target", {}), costs)
    drafts, notes = {}, []
    folders: dict[str, Path] = {}
    for cell in inputs.cells:
        name, spec = drafting(cell), cell.models.draft
        if spec is None or name not in costs.arms or cell.method.drafter.name != "model":
            continue
        folders[name] = locate(spec)
        drafts[name] = sizes_of(folders[name], models.get(str(spec), {}), costs)
    arm = next((drafting(c) for c in inputs.cells if drafting(c) in costs.arms), PLAIN)
    if arm == PLAIN:
        raise UsageError("nothing drafts (`link`): expected costs of a drafter. Name one")
    context = costs.passes.contexts[len(costs.passes.contexts) // 2]

    def placed(ranks: int, shared: Mapping[str, Sizes]) -> Placement:
        ranked_costs = over_ranks(costs, ranks, link, target, shared)
        best = replace(inputs, costs=ranked_costs).forecasts().best if inputs.traced else None
        return Placement(ranks, bool(shared), ranked_costs, arm, context, best)

    placements = [placed(1, {})]
    for ranks in counts(most):
        if (why := refused(folder, ranks)) is not None:
            notes.append(f"Not over {ranks} ranks: {why}")
            continue
        placements.append(placed(ranks, {}))
        able = {
            name: sizes for name, sizes in drafts.items() if refused(folders[name], ranks) is None
        }
        if able:
            placements.append(placed(ranks, able))
    if len(placements) == 1:
        raise DataError(notes[-1].partition(": ")[2])
    return RankForecasts(placements, target, notes)


def counts(most: int) -> Iterator[int]:
    """Yield 2, 4, 8 ... and `most`."""
    ranks = 2
    while ranks < most:
        yield ranks
        ranks *= 2
    yield most


def refused(folder: Path, ranks: int) -> str | None:
    """Return why `ranks` ranks cannot share the model in `folder`; None: they can."""
    try:
        config = config_of(folder)
        check_shareable(plain_class(config), config, ranks, folder)
    except DataError as error:
        return str(error)
    return None


def config_of(folder: Path) -> Any:
    """Return the transformers configuration of a folder."""
    with silent():
        return AutoConfig.from_pretrained(folder, local_files_only=True)


def sizes_of(folder: Path, described: Mapping[str, Any], costs: Costs) -> Sizes:
    """Return the sizes of the model in `folder`, in the number format of the costs.

    Raises:
        DataError: the costs name no number format.
    """
    number = getattr(torch, str(described.get("dtype")), None)
    if not isinstance(number, torch.dtype):
        raise DataError(
            f"the costs do not name the numbers of {folder} (costs): expected a dtype. "
            "Measure them again"
        )
    values = plain(config_of(folder))
    layers, width = first(values, DEPTH), first(values, WIDTH)
    return Sizes(layers, width, int(values["vocab_size"]), number.itemsize)

"""A plan, or a table of costs, laid over several ranks of a given link."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig

from spsbench.errors import DataError, UsageError
from spsbench.models.config import check_shareable
from spsbench.models.loader import plain_class
from spsbench.models.third_party import silent
from spsbench.planning.forecast.costs import PLAIN, Costs
from spsbench.planning.forecast.link import Link
from spsbench.planning.forecast.placements import Placement
from spsbench.planning.forecast.shared import Sizes, over_ranks
from spsbench.planning.material import Material
from spsbench.planning.shapes import DEPTH, WIDTH, first, plain
from spsbench.settings.labels import drafting


class Forecasts(NamedTuple):
    """Placements, one rank first; the sizes of the target; what is to be said of it."""

    placements: list[Placement]
    target: Sizes
    notes: list[str]


def forecast_ranks(
    material: Material, most: int, link: Link, locate: Callable[[Any], Path]
) -> Forecasts:
    """Over 1, 2, 4 ... `most` ranks, the draft model on rank 0 and shared.

    Args:
        locate: from a model's spec to its folder; no weights are read.

    Raises:
        DataError: a target that cannot be shared, or costs without its number format.
        UsageError: nothing in the costs drafts.
    """
    costs, models = material.costs, material.costs.setting.get("models", {})
    target_spec = material.cells[0].models.target
    folder = locate(target_spec)
    target = sizes_of(folder, models.get("target", {}), costs)
    drafts, notes = {}, []
    folders: dict[str, Path] = {}
    for cell in material.cells:
        name, spec = drafting(cell), cell.models.draft
        if spec is None or name not in costs.arms or cell.method.drafter.name != "model":
            continue
        folders[name] = locate(spec)
        drafts[name] = sizes_of(folders[name], models.get(str(spec), {}), costs)
    arm = next((drafting(c) for c in material.cells if drafting(c) in costs.arms), PLAIN)
    if arm == PLAIN:
        raise UsageError("nothing drafts (--link): expected costs of a drafter. Name one")
    context = costs.passes.contexts[len(costs.passes.contexts) // 2]

    def placed(ranks: int, shared: Mapping[str, Sizes]) -> Placement:
        made = over_ranks(costs, ranks, link, target, shared)
        best = replace(material, costs=made).outlook().best if material.traced else None
        return Placement(ranks, bool(shared), made, arm, context, best)

    found = [placed(1, {})]
    for ranks in counts(most):
        if (why := refused(folder, ranks)) is not None:
            notes.append(f"Not over {ranks} ranks: {why}")
            continue
        found.append(placed(ranks, {}))
        able = {
            name: each for name, each in drafts.items() if refused(folders[name], ranks) is None
        }
        if able:
            found.append(placed(ranks, able))
    if len(found) == 1:
        raise DataError(notes[-1].partition(": ")[2])
    return Forecasts(found, target, notes)


def counts(most: int) -> Iterator[int]:
    """2, 4, 8 ... and `most`."""
    ranks = 2
    while ranks < most:
        yield ranks
        ranks *= 2
    yield most


def refused(folder: Path, ranks: int) -> str | None:
    """Why the model in `folder` cannot be shared by so many ranks; None: it can."""
    try:
        config = config_of(folder)
        check_shareable(plain_class(config), config, ranks, folder)
    except DataError as error:
        return str(error)
    return None


def config_of(folder: Path) -> Any:
    """Its transformers configuration."""
    with silent():
        return AutoConfig.from_pretrained(folder, local_files_only=True)


def sizes_of(folder: Path, described: Mapping[str, Any], costs: Costs) -> Sizes:
    """Of the model in `folder`, in the number format that its costs were measured in.

    Raises:
        DataError: the costs name none.
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

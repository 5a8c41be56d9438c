"""The number of distinct experts of a pass, which decides whether speculation pays.

A router sends each token to a few of many experts. The tokens of a draft choose different ones, so
a pass over several reads more weights than a pass over one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import moe

from spsbench.engines.linear_layers import StandIn

STOCK, COUNTED = "grouped_mm", "spsbench_counted"  # as configurations name them

_watched: list[list[int]] = []
"""Distinct experts of each layer so far, a list for each watched pass, innermost last."""


@contextmanager
def watch_experts(counting: bool = True) -> Iterator[list[int]]:
    """Yield a list that gets each layer's distinct experts, if `count_experts_in` ran; else []."""
    distinct: list[int] = []
    if not counting:
        yield distinct
        return
    _watched.append(distinct)
    try:
        yield distinct
    finally:
        _watched.pop()


def count_experts(ids: Tensor) -> Tensor:
    """Return `ids` [m, k] of experts; add the number of distinct ones to the innermost watch."""
    if _watched:
        _watched[-1].append(len(set(ids.flatten().tolist())))
    return ids


def mean_experts(distinct: list[int]) -> float | None:
    """Return the mean number of distinct experts of a layer; None: the model has no experts."""
    return fmean(distinct) if distinct else None


def counts_experts(model: PreTrainedModel) -> bool:
    """Return whether the distinct experts of the passes of `model` can be counted."""
    implementation = getattr(model.config.get_text_config(), "_experts_implementation", None)
    return implementation == COUNTED and model.device.type == "cpu"


def count_experts_in(model: PreTrainedModel) -> None:
    """Count the experts of `model` from now on, on a CPU and where transformers groups products."""
    config = model.config.get_text_config()
    stock = getattr(config, "_experts_implementation", None) == STOCK
    if stock and model.device.type == "cpu" and any(expert_modules(model)):
        config._experts_implementation = COUNTED


def expert_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield parent, name and module of each stock module of experts."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if hasattr(child, "_apply_gate") and not isinstance(parent, StandIn):
                yield parent, name, child


def _counted_forward(module: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Compute as transformers does, and count the experts."""
    output: Tensor = moe.grouped_mm_experts_forward(module, hidden, count_experts(ids), weights)
    return output


moe.ALL_EXPERTS_FUNCTIONS.register(COUNTED, _counted_forward)

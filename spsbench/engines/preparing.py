"""What is done to a model once, before any session: is it suitable, packed, how many threads.

A prepared model is kept apart from a plain one (`loading.Shelf`): another engine, or transformers'
own `generate`, must not be timed over weights that this one has packed.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.attention import NAME
from spsbench.engines.blocks import attach
from spsbench.engines.choice import Choice, choice_of, remember
from spsbench.engines.eager import UnsupportedModelError, check_rollback
from spsbench.engines.packing import Slot, pack, slots, tied, unpack, unpackable
from spsbench.engines.session import FastLM
from spsbench.engines.trials import best_packing, best_threads


def unsuitable(model: PreTrainedModel) -> str | None:
    """Why `model` needs the eager engine, else None."""
    chosen = choice_of(model)
    if chosen is not None:
        return None if chosen.engine == "fast" else chosen.reason
    if getattr(model.config.get_text_config(), "sliding_window", None) is not None:
        return "sliding-window attention does not keep all of the past"
    return None


@torch.inference_mode()
def prepare(
    model: PreTrainedModel, *, known: Choice | None = None, threads: int | None = None
) -> Choice:
    """Pack the weights of `model` in place, and choose how it is run.

    Args:
        model: one that `check_rollback` has passed.
        known: what was chosen before, on this machine; nothing is timed then.
        threads: what the user asked for; None = chosen by timing.
    """
    if choice := choice_of(model):
        return choice
    reason = unsuitable(model) or _fails(model)
    if reason:
        return remember(model, Choice(engine="eager", reason=reason))
    layers = list(slots(model))
    reason = unpackable(model)
    wanted = known.packed if known else {} if reason else worthwhile(layers)
    before = _probe(model)
    count = pack_all(model, layers, wanted)
    if count and not _close(before, _probe(model)):
        unpack(model)
        wanted, count, reason = {}, 0, "packed products differ from stock ones"
    use_attention(model, before)
    release_memory()
    tape = attach(model)
    choice = Choice(
        engine="fast",
        reason=reason or "",
        linears=len(layers),
        packed=wanted,
        packed_linears=count,
        threads=known.threads if known else None,
    )
    remember(model, choice, tape)
    free = known is None and threads is None and "OMP_NUM_THREADS" not in os.environ
    if free and model.device.type == "cpu":
        choice = replace(choice, threads=best_threads(FastLM(model)))
        remember(model, choice, tape)
    return choice


def worthwhile(layers: Iterable[Slot]) -> dict[str, int]:
    """The shapes that are faster packed, and to how many rows; timed once for each shape."""
    by_shape: dict[str, list[Slot]] = {}
    for slot in layers:
        by_shape.setdefault(shape_of(slot), []).append(slot)
    size = sum(slot.weight.nbytes for alike in by_shape.values() for slot in alike)
    best = {shape: best_packing(alike, size) for shape, alike in by_shape.items()}
    return {shape: least for shape, least in best.items() if least is not None}


def pack_all(model: nn.Module, layers: Iterable[Slot], wanted: Mapping[str, int]) -> int:
    """Pack layer after layer, so that no more than one is in memory twice; how many."""
    count = 0
    for slot in layers:
        least = wanted.get(shape_of(slot))
        if least is not None:
            pack(slot, least, tied(model, slot))
            count += 1
    return count


def use_attention(model: PreTrainedModel, before: Tensor) -> None:
    """Exchange `sdpa` for this engine's own, if the model then computes the same.

    Args:
        model: on the CPU; one with another implementation keeps it.
        before: its logits by `_probe`.
    """
    config = model.config
    if config._attn_implementation != "sdpa" or model.device.type != "cpu":
        return
    config._attn_implementation = NAME
    if _fails(model) or not _close(before, _probe(model)):
        config._attn_implementation = "sdpa"


def release_memory() -> None:
    """Give back what the exchange of weights has freed: glibc keeps it for itself otherwise."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def shape_of(slot: Slot) -> str:
    """Rows x columns, that is outputs x inputs."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"


def _fails(model: PreTrainedModel) -> str | None:
    """Why sessions of this engine cannot run `model`, else None."""
    try:
        check_rollback(model, FastLM)
    except UnsupportedModelError as error:
        return str(error)
    return None


def _probe(model: PreTrainedModel) -> Tensor:
    """Logits of a few tokens without a cache."""
    ids = torch.arange(1, 6, device=model.device)[None] % model.config.get_text_config().vocab_size
    logits: Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return logits


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, which in bfloat16 is coarse: a wrong layout is off by far more."""
    return bool((a - b).abs().max() <= 0.05 * a.abs().max())

"""What is done to a model once, before any session: is it suitable, packed, how many threads.

A prepared model is kept apart from a plain one (`loading.Shelf`): another engine, or transformers'
own `generate`, must not be timed over weights that this one has packed.
"""

import ctypes
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from spsbench.engines.activations import exchange_activations
from spsbench.engines.attention import NAME
from spsbench.engines.blocks import attach
from spsbench.engines.checking import Check
from spsbench.engines.choice import Choice, choice_of, remember
from spsbench.engines.eager import UnsupportedModelError, check_rollback, ordinary
from spsbench.engines.experts import (
    PackedExperts,
    count_experts_in,
    expert_slots,
    pack_experts,
)
from spsbench.engines.kept import keep, recall
from spsbench.engines.linears import Slot, embeddings, exchange, restore, slots, tied
from spsbench.engines.packing import layouts, unpackable
from spsbench.engines.pages import huge_pages
from spsbench.engines.panels import most_bytes
from spsbench.engines.quantised import dequantise, quantised_layers
from spsbench.engines.quantised_panels import pack_codes, refused
from spsbench.engines.reading import choose, current, use
from spsbench.engines.session import FastLM
from spsbench.engines.trials import CACHES, best_layout, best_threads
from spsbench.engines.windows import narrowed
from spsbench.machine import crowd


def unsuitable(model: PreTrainedModel) -> str | None:
    """Why `model` needs the eager engine, else None."""
    chosen = choice_of(model)
    return None if chosen is None or chosen.engine == "fast" else chosen.reason


@torch.inference_mode()
def prepare(
    model: PreTrainedModel, *, known: Choice | None = None, threads: int | None = None
) -> Choice:
    """Pack the weights of `model` in place, and choose how it is run.

    Args:
        model: any; one that sessions of this engine cannot run is left with stock layers.
        known: what was chosen before, on this machine; nothing is timed then.
        threads: what the user asked for; None = chosen by timing.
    """
    if choice := choice_of(model):
        return choice
    if refused(model, model.dtype):
        dequantise(model)
    coded = len(quantised_layers(model))
    layers = list(slots(model))
    try:
        check = Check(model)
    except Exception as error:  # foreign code may raise anything
        return remember(model, Choice(engine="eager", reason=f"a plain pass fails ({error})"))
    reason = None if coded and not layers else unpackable(model)
    reading = "" if reason and not coded else _reading(model.dtype, known)
    wanted = {} if reason else worthwhile(layers, known.packed if known else None)
    counts = pack_all(model, layers, wanted)
    counts |= (codes := pack_codes(model))
    if counts and not check.holds(model):
        restore(model)
        dequantise(model)
        counts, codes, reason = {}, {}, "packed products differ from stock ones"
    routed = _pack_experts(model, known, check)
    exchange_activations(model)
    if problem := refine_attention(model, check):
        restore(model)
        dequantise(model)
        return remember(model, Choice(engine="eager", reason=problem))
    release_memory()
    tape = attach(model)
    choice = Choice(
        engine="fast",
        reason=reason or "",
        linears=len(layers) + coded,
        packed=routed | {shape: wanted.get(shape, "panels") for shape in counts},
        packed_linears=sum(counts.values()),
        threads=known.threads if known else None,
        reading=reading if codes or "panels" in wanted.values() else "",
        cache=_token_bytes(model),
    )
    remember(model, choice, tape)
    asked = known is not None or threads is not None or "OMP_NUM_THREADS" in os.environ
    if not asked and model.device.type == "cpu":
        choice = _with_threads(choice, FastLM(model))
        remember(model, choice, tape)
    return choice


def _with_threads(choice: Choice, lm: FastLM) -> Choice:
    """`choice` with the number of threads that is best here and now."""
    others = crowd.at_work()
    free = crowd.left(torch.get_num_threads(), others, os.cpu_count() or 1, crowd.quota())
    return replace(choice, threads=best_threads(lm, free), beside=round(others))


def _token_bytes(model: PreTrainedModel) -> int:
    """What a token takes in the cache of a session."""
    lm = FastLM(model)
    lm.append(ordinary(lm.vocab_size, 1), keep=1)
    return lm.token_bytes


def _reading(dtype: torch.dtype, known: Choice | None) -> str:
    """How panels of `dtype` are read from here on: as `known` tells, else by choice."""
    if known is None:
        choose(dtype)
    else:
        use(dtype, known.reading)
    return current(dtype).name


def _pack_experts(model: PreTrainedModel, known: Choice | None, check: Check) -> dict[str, str]:
    """Pack layers of experts where that is faster, and count them; their shapes and layout."""
    count_experts_in(model)
    found = expert_slots(model)
    shapes = {shape_of(slot) for slot in found}
    faster = worthwhile(found, known.packed if known else None)
    if not found or faster.keys() != shapes:
        return {}
    del found
    pack_experts(model)
    if check.holds(model):
        return dict.fromkeys(shapes, "panels")
    restore(model, PackedExperts)
    return {}


STOCK = "stock"
_BEST: dict[str, str | None] = {}
"""By shape, kind and dtype of layers, and whether the caches hold the model; a draft often has its
target's."""


def worthwhile(layers: Iterable[Slot], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The shapes that are faster packed, and how; each is timed once on a machine.

    Args:
        layers: of a model.
        known: what was chosen before; what it leaves out stays stock. A layout that cannot be had
            here is chosen anew. None: nothing was.
    """
    by_shape: dict[str, list[Slot]] = {}
    for slot in layers:
        by_shape.setdefault(shape_of(slot), []).append(slot)
    size = sum(slot.weight.nbytes for alike in by_shape.values() for slot in alike)
    best: dict[str, str | None] = {}
    for shape, alike in by_shape.items():
        if known is not None and (shape not in known or known[shape] in layouts(alike[0].weight)):
            best[shape] = known.get(shape)
            continue
        kind, dtype = type(alike[0].layer).__name__, alike[0].weight.dtype
        key = f"layout {shape} {kind} {dtype} {'in' if size < CACHES else 'beyond'} caches"
        if key not in _BEST:
            _BEST[key] = _best(key, alike, size)
        best[shape] = _BEST[key]
    return {shape: layout for shape, layout in best.items() if layout is not None}


def _best(key: str, alike: Sequence[Slot], size: int) -> str | None:
    """The layout of layers of one shape: kept as `key`, or measured and kept. None: stock."""
    found = str(recall(key))
    if found == STOCK or found in layouts(alike[0].weight):
        return None if found == STOCK else found
    best = best_layout(alike, size)
    keep(key, best or STOCK)
    return best


def pack_all(model: nn.Module, layers: Sequence[Slot], wanted: Mapping[str, str]) -> dict[str, int]:
    """Pack layer after layer: no more than one is in memory twice. How many of each shape."""
    counts: Counter[str] = Counter()
    tables = embeddings(model)
    packable = [slot for slot in layers if shape_of(slot) in wanted]
    with huge_pages(sum(most_bytes(slot.weight) for slot in packable)):
        for slot in packable:
            layout = layouts(slot.weight).get(wanted[shape_of(slot)])
            if layout is not None:
                counts[shape_of(slot)] += 1
                exchange(slot, layout(slot.weight, slot.layer.bias), tied(slot, tables))
    return dict(counts)


@torch.inference_mode()
def pack_linears(module: nn.Module) -> dict[str, int]:
    """Pack what is faster packed of a network that is no model; how many of each shape.

    A layer whose packed product is not the stock one keeps its weights, and so do all of its shape.
    """
    layers = list(slots(module))
    if unpackable(module):
        return {}
    wanted = worthwhile(layers)
    for slot in {shape_of(slot): slot for slot in layers}.values():
        if (name := wanted.get(shape_of(slot))) is None:
            continue
        weight = slot.weight
        x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype)[None]
        packed = layouts(weight)[name](weight, slot.layer.bias)
        stock = slot.layer(x).float()
        if not torch.allclose(packed(x).float(), stock, rtol=0.02, atol=1e-3):
            del wanted[shape_of(slot)]
    return pack_all(module, layers, wanted)


def refine_attention(model: PreTrainedModel, check: Check) -> str | None:
    """Exchange attention for this engine's own, if sessions of `model` then compute the same.

    Args:
        model: one with another implementation, or on another device, keeps it; the plain one is
            exchanged where transformers has no `sdpa` for the model.
        check: of the model as it was.

    Returns:
        Why sessions of this engine cannot run `model` either way, else None.
    """
    config = model.config
    before = config._attn_implementation
    only = not model._supports_sdpa and model._supports_attention_backend
    if model.device.type != "cpu" or before != ("eager" if only else "sdpa"):
        return _fails(model)
    config._attn_implementation = NAME
    if check.holds(model) and _fails(model) is None:
        return None
    config._attn_implementation = before
    return _fails(model)


def release_memory() -> None:
    """Give back what the exchange of weights has freed: glibc keeps it for itself otherwise."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def shape_of(slot: Slot) -> str:
    """Rows x columns, that is outputs x inputs."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"


def _fails(model: PreTrainedModel) -> str | None:
    """Why sessions of this engine cannot run `model`, else None; windows are tried as well."""
    try:
        check_rollback(model, FastLM)
        with narrowed(model) as windowed:
            if windowed:
                check_rollback(model, FastLM)
    except UnsupportedModelError as error:
        return str(error)
    return None

"""What is done to a model once, before any session: is it suitable, packed, how many threads.

A prepared model is kept apart from a plain one (`loading.Shelf`): another engine, or transformers'
own `generate`, must not be timed over weights that this one has packed.
"""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel

from spsbench.engines.activations import exchange_activations
from spsbench.engines.attention import NAME
from spsbench.engines.blocks import attach
from spsbench.engines.checking import Bounds, Check
from spsbench.engines.choice import Choice, choice_of, remember
from spsbench.engines.coded_layouts import coded_layouts, pack_codes, refused
from spsbench.engines.eager import UnsupportedModelError, check_rollback, ordinary
from spsbench.engines.experts import (
    PackedExperts,
    count_experts_in,
    expert_slots,
    pack_experts,
    places,
)
from spsbench.engines.kept import keep, recall
from spsbench.engines.linears import restore, slots
from spsbench.engines.norms import exchange_norms
from spsbench.engines.packing import in_panels, unpackable
from spsbench.engines.quantised import dequantise, quantised_layers
from spsbench.engines.reading import choose, current, use
from spsbench.engines.session import FastLM
from spsbench.engines.trials import best_threads
from spsbench.engines.verdict import as_kept, forget, keep_bounds, name_of, recall_bounds
from spsbench.engines.windows import narrowed
from spsbench.engines.worth import pack_all, shape_of, worthwhile
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
    linears = len(list(slots(model)))
    reason = None if coded and not linears else unpackable(model)
    name = None if reason or coded or any(places(model)) else name_of(model)
    bounds = None if name is None else recall_bounds(name)
    made: Made | None = None
    if name is not None and bounds is not None:
        made = _made_again(model, known, bounds)
        if made is None:
            forget(name)
            name, reason = None, "logits over packed weights are not those kept for this model"
    if made is None:
        try:
            check = Check(model)
        except Exception as error:  # foreign code may raise anything
            problem = f"a plain pass fails ({error})"
            return remember(model, Choice(engine="eager", reason=problem))
        made = _made(model, known, check, reason)
        if made.problem:
            return remember(model, Choice(engine="eager", reason=made.problem))
        lean = model.config._attn_implementation == NAME
        if name and lean and not made.reason and as_kept(model, check.bounds) is not None:
            keep_bounds(name, check.bounds)
    release_memory()
    tape = attach(model)
    choice = Choice(
        engine="fast",
        reason=made.reason,
        linears=linears + coded,
        packed=made.packed,
        packed_linears=made.layers,
        threads=known.threads if known else None,
        reading=made.reading,
        cache=made.token_bytes,
    )
    remember(model, choice, tape)
    asked = known is not None or threads is not None or "OMP_NUM_THREADS" in os.environ
    if not asked and model.device.type == "cpu":
        choice = _with_threads(choice, FastLM(model), name)
        remember(model, choice, tape)
    return choice


@dataclass(frozen=True, slots=True)
class Made:
    """What was done to a model."""

    packed: Mapping[str, str] = field(default_factory=dict)  # shape -> layout
    layers: int = 0  # of them
    reading: str = ""
    reason: str = ""  # why nothing is packed
    token_bytes: int = 0
    problem: str = ""  # why sessions of this engine cannot run it


def _made(model: PreTrainedModel, known: Choice | None, check: Check, reason: str | None) -> Made:
    """Pack `model`, exchange its attention, and have each judged."""
    coded = bool(quantised_layers(model))
    layers = list(slots(model))
    reading = "" if reason and not coded else _reading(model.dtype, known)
    wanted = {} if reason else worthwhile(layers, known.packed if known else None)
    wanted |= coded_layouts(model, model.dtype, known.packed if known else None)
    counts = pack_all(model, layers, wanted) | pack_codes(model, wanted)
    if counts and not check.holds(model):
        restore(model)
        dequantise(model)
        counts, wanted, reason = {}, {}, "packed products differ from stock ones"
    routed = _pack_experts(model, known, check)
    exchange_activations(model)
    exchange_norms(model)
    if problem := refine_attention(model, check):
        restore(model)
        dequantise(model)
        return Made(problem=problem)
    return Made(
        packed=routed | {shape: wanted[shape] for shape in counts},
        layers=sum(counts.values()),
        reading=reading if in_panels(wanted.values()) else "",
        reason=reason or "",
        token_bytes=_token_bytes(model),
    )


def _made_again(model: PreTrainedModel, known: Choice | None, bounds: Bounds) -> Made | None:
    """As `_made`, of a model that was judged before; None: it was not so, and is stock again."""
    layers = list(slots(model))
    before, model.config._attn_implementation = model.config._attn_implementation, NAME
    reading = _reading(model.dtype, known)
    wanted = worthwhile(layers, known.packed if known else None)
    counts = pack_all(model, layers, wanted)
    exchange_activations(model)
    exchange_norms(model)
    token = as_kept(model, bounds)
    if token is None:
        restore(model)
        model.config._attn_implementation = before
        return None
    return Made(
        packed={shape: wanted[shape] for shape in counts},
        layers=sum(counts.values()),
        reading=reading if in_panels(wanted.values()) else "",
        token_bytes=token,
    )


def _with_threads(choice: Choice, lm: FastLM, name: str | None) -> Choice:
    """`choice` with the number of threads that is best here and now.

    Where nobody else is at work it is the one that was found so before.
    """
    others, usual = crowd.at_work(), torch.get_num_threads()
    free = crowd.left(usual, others, os.cpu_count() or 1, crowd.quota())
    if name is None or others >= crowd.BUSY:
        return replace(choice, threads=best_threads(lm, free), beside=round(others))
    key = f"threads {name} of {usual}, {free} free"
    found = recall(key)
    if not isinstance(found, int) or not 1 <= found <= usual:
        found = best_threads(lm, free) or usual
        keep(key, found)
    return replace(choice, threads=None if found == usual else found)


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

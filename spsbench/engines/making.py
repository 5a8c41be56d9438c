"""What is done to a model so that this engine runs it, as the judge allows or allowed before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import PreTrainedModel

from spsbench.engines import packings
from spsbench.engines.eager import UnsupportedModelError, check_rollback, ordinary
from spsbench.engines.laying import Laying
from spsbench.engines.packing.experts import (
    PackedExperts,
    count_experts_in,
    expert_slots,
    pack_experts,
)
from spsbench.engines.packing.layouts import in_panels
from spsbench.engines.packing.linear_layers import restore, undoing
from spsbench.engines.packing.logit_check import Bounds, Check
from spsbench.engines.packing.prefetch import choose, current, use
from spsbench.engines.packing.worth import shape_of, worthwhile
from spsbench.engines.packings import Packing
from spsbench.engines.quantization.layers import dequantise, quantised_layers
from spsbench.engines.replay.activations import exchange_activations
from spsbench.engines.replay.attention import NAME
from spsbench.engines.replay.norms import exchange_norms
from spsbench.engines.session.engine_config import Choice
from spsbench.engines.session.session import FastLM
from spsbench.engines.session.windows import narrowed
from spsbench.engines.verdict import as_kept


@dataclass(frozen=True, slots=True)
class Made:
    """What was done to a model."""

    packed: Mapping[str, str] = field(default_factory=dict)  # shape -> layout
    layers: int = 0  # of them
    reading: str = ""
    reason: str = ""  # why nothing is packed
    token_bytes: int = 0
    packing: Packing = field(default_factory=Packing)
    problem: str = ""  # why sessions of this engine cannot run it


def made_anew(
    model: PreTrainedModel, known: Choice | None, check: Check, reason: str | None
) -> Made:
    """Pack `model`, exchange its attention, and have each judged."""
    coded = bool(quantised_layers(model))
    reading = "" if reason and not coded else _reading(model.dtype, known)
    packing, problem = Packing(), ""
    counts: Mapping[str, int] = {}
    wanted: Mapping[str, str] = {}
    try:
        laying = Laying.of(model, known, stock=reason is not None)
        packing, wanted = laying.packing(kept=False), laying.wanted
        counts = laying.lay(packing)
        if counts and not check.holds(model):
            problem = "packed products differ from stock ones"
    except RuntimeError as error:  # torch's word for what this processor or its libraries lack
        problem = f"packing fails: {str(error).splitlines()[0]}"
    if problem:
        restore(model)
        dequantise(model)
        packing, counts, wanted, reason = Packing(), {}, {}, problem
    routed = _pack_experts(model, known, check)
    exchange_activations(model)
    exchange_norms(model)
    if failure := refine_attention(model, check):
        restore(model)
        dequantise(model)
        return Made(problem=failure)
    return Made(
        packed=routed | {shape: wanted[shape] for shape in counts},
        layers=sum(counts.values()),
        reading=reading if in_panels(wanted.values()) else "",
        reason=reason or "",
        token_bytes=_token_bytes(model),
        packing=packing,
    )


def made_again(model: PreTrainedModel, known: Choice | None, bounds: Bounds) -> Made | None:
    """As `made_anew`, of a model judged before; None: it is not that one, and is stock again."""
    before, model.config._attn_implementation = model.config._attn_implementation, NAME
    reading = _reading(model.dtype, known)
    laying = Laying.of(model, known)
    packing, wanted = laying.packing(kept=True), laying.wanted
    found = packing.room is not None and packing.room.written
    # Weights that were laid out can be turned back; those that are found may be others.
    undo = undoing(model) if found else partial(restore, model)
    counts = laying.lay(packing)
    exchange_activations(model)
    exchange_norms(model)
    # Where panels are kept, the class is transformers' own and code and files are as they were.
    token = as_kept(model, bounds, briefly=found)
    if token is None:
        packings.forget(packing.name)
        undo()
        model.config._attn_implementation = before
        return None
    return Made(
        packed={shape: wanted[shape] for shape in counts},
        layers=sum(counts.values()),
        reading=reading if in_panels(wanted.values()) else "",
        token_bytes=token,
        packing=packing,
    )


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

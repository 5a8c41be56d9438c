"""What is done to a model once, before any session: is it suitable, packed, how many threads.

A prepared model is kept apart from a plain one (`models.cache.ModelCache`): another engine, or
transformers' own `generate`, must not be timed over weights that this one has packed.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spsbench.engines import packings
from spsbench.engines.making import Made, made_again, made_anew
from spsbench.engines.packing.experts import PackedExperts, places
from spsbench.engines.packing.layouts import unpackable
from spsbench.engines.packing.linear_layers import Packed, slots
from spsbench.engines.packing.logit_check import Check
from spsbench.engines.packing.panels import PANEL, PanelLinear
from spsbench.engines.packing.trials import best_threads
from spsbench.engines.packing.tuning_cache import keep, recall
from spsbench.engines.quantization.coded_layouts import refused
from spsbench.engines.quantization.layers import dequantise, quantised_layers, write_codes
from spsbench.engines.quantization.over_codes import OverCodes
from spsbench.engines.quantization.panels import QuantisedPanels
from spsbench.engines.replay.attention import NAME
from spsbench.engines.replay.layer_replay import attach
from spsbench.engines.session.engine_config import Choice, choice_of, remember
from spsbench.engines.session.session import FastLM
from spsbench.engines.verdict import as_kept, forget, keep_bounds, name_of, recall_bounds
from spsbench.hardware import crowd


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
    name = None if reason or any(places(model)) else name_of(model)
    bounds = None if name is None else recall_bounds(name)
    made: Made | None = None
    if name is not None and bounds is not None:
        made = made_again(model, known, bounds)
        if made is None:
            forget(name)
            name, reason = None, "logits over packed weights are not those kept for this model"
    if made is None:
        write_codes(model)
        try:
            check = Check(model)
        except Exception as error:  # foreign code may raise anything
            problem = f"a plain pass fails ({error})"
            return remember(model, Choice(engine="eager", reason=problem))
        made = made_anew(model, known, check, reason)
        if made.problem:
            return remember(model, Choice(engine="eager", reason=made.problem))
        lean = model.config._attn_implementation == NAME
        if name and lean and not made.reason and as_kept(model, check.bounds) is not None:
            keep_bounds(name, check.bounds)
            packings.keep(made.packing)
    else:
        packings.keep(made.packing)
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
        row_bits=keeps_row_bits(model),
    )
    remember(model, choice, tape)
    asked = known is not None or threads is not None or "OMP_NUM_THREADS" in os.environ
    if not asked and model.device.type == "cpu":
        choice = _with_threads(choice, FastLM(model), name)
        remember(model, choice, tape)
    return choice


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


def keeps_row_bits(model: PreTrainedModel) -> bool:
    """Return whether a token's logits have the same bits in a pass of any size.

    True where all products and attention run in own kernels, which add up each row in one order,
    and widths fill whole vectors: torch computes the rest of a vector by other functions.
    """
    kinds = nn.Linear, Conv1D, Packed, OverCodes, PackedExperts
    products = [module for module in model.modules() if isinstance(module, kinds)]
    own = [m for m in products if isinstance(m, (PanelLinear, QuantisedPanels))]
    whole = all(module.in_features % PANEL == 0 for module in own)
    return own == products and whole and model.config._attn_implementation == NAME


def release_memory() -> None:
    """Give back what the exchange of weights has freed: glibc keeps it for itself otherwise."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)

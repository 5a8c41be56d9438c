"""The compiled engine: transformers' own modules over a preallocated cache and packed weights.

The tokens equal those of `eager`. The memory layout of keys, values and weights differs, the number
of threads, and the Python of a layer runs once instead of at every step. Its page is
docs/explanation/fast-engine.md.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spsbench.engines.eager import KINDS, EagerLM, UnsupportedModelError, check_rollback, ordinary
from spsbench.engines.experts import count_experts_in, expert_modules
from spsbench.engines.linear_layers import Packed, restore, slots
from spsbench.engines.quantization.layers import OverCodes, dequantise, quantised_layers
from spsbench.engines.session.engine_config import EngineConfig, engine_config_of, set_engine_config
from spsbench.engines.session.longrope import open_at_border
from spsbench.engines.session.masks import narrow_windows
from spsbench.engines.session.session import FastLM
from spsbench.engines.static import Static, StaticLM
from spsbench.extensions.cpu.kernels.native import KINDS as DTYPES
from spsbench.extensions.cpu.kernels.native import load_kernels
from spsbench.extensions.cpu.kernels.steps import PANEL
from spsbench.extensions.cpu.packing.coded_panels import (
    QuantisedPanels,
    coded_bytes,
    pack_codes,
    refuse_codes,
)
from spsbench.extensions.cpu.packing.experts import PackedExperts, expert_shapes, pack_experts
from spsbench.extensions.cpu.packing.logit_check import LogitCheck
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import (
    LAYOUTS,
    PanelLinear,
    has_unit,
    pack_linear_layers,
    pack_network,
    packed_bytes,
    unpackable,
)
from spsbench.extensions.cpu.packing.tuning import measured_prefetch
from spsbench.extensions.cpu.replay.attention import NAME, attend_fused
from spsbench.extensions.cpu.replay.bodies import CpuModelReplay, replays_of
from spsbench.extensions.cpu.replay.fused_modules import exchange_activations, exchange_norms
from spsbench.extensions.cpu.warp import KernelWarp
from spsbench.hardware import contention
from spsbench.loop.types import LM, Engine

Kind = Callable[..., LM]
SMALL, FEW_THREADS = 32 * 2**20, 2  # bytes of weights, and the threads that they are worth


def report_kernels() -> Iterator[tuple[str, str]]:
    """Yield ("kernels", compiled or why not), then, if compiled, ("weights", how read) by dtype."""
    kernels = load_kernels()
    if isinstance(kernels, str):
        yield "kernels", f"none: {kernels}"
        return
    yield "kernels", "compiled" + (", for the matrix unit (AMX) too" if has_unit() else "")
    for dtype, kind in DTYPES.items():
        yield "weights", f"{kind}: {measured_prefetch(dtype)} (measured here)"


class Fast(Engine):
    """Any decoder that `eager` takes, at the speed that the memory allows."""

    warp = KernelWarp
    report = staticmethod(report_kernels)  # for `sps doctor`

    def session(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> LM:
        """Open a session with `model`: its own cache over shared weights."""
        kind = kind_of_session(model)
        return open_at_border(lambda: kind(model, vocab_size=vocab_size, layers=layers), model)

    def prepare(
        self,
        model: PreTrainedModel,
        *,
        known: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Pack `model` in place and choose its threads; return the choice as JSON values.

        Threads are those of `known`, what an earlier call returned; without it they are chosen,
        unless the user gives `threads`. A model on a GPU is prepared as `static` does; one that
        this engine cannot run is left stock, its codes as plain weights, for `eager`. DataError:
        logits that are not finite. UnsupportedModelError: eager sessions cannot run it either.
        """
        if model.device.type == "cuda" and model not in KINDS:
            return Static().prepare(model)  # the kernels are for processors
        previous = None if known is None else EngineConfig.from_json(known)
        choice = pack_and_capture(model, previous=previous, threads=threads)
        if choice.engine == "eager":
            dequantise(model)
            check_rollback(model)
        return choice.to_json()

    def pack(self, module: Any) -> None:
        """Pack a drafter's own network in place, with kernels for its parts and its passes.

        `module.dtype` is that of its numbers; its linear layers may be over codes, which become
        plain weights where no kernel takes them. On a GPU `static` packs it.
        """
        if next(module.parameters()).device.type == "cuda":
            Static().pack(module)
            return
        if refuse_codes(module, module.dtype):
            dequantise(module)
        pack_network(module)
        pack_codes(module, module.dtype)
        exchange_activations(module)
        exchange_norms(module)
        for part in module.modules():
            if hasattr(part, "attend"):
                vars(part)["attend"] = attend_fused
        vars(module)["replay_over"] = replays_of(module)


def kind_of_session(model: PreTrainedModel) -> Kind:
    """Return what opens sessions of `model`: as registered, or of its engine, else `FastLM`."""
    if model in KINDS:
        return KINDS[model]
    chosen = engine_config_of(model)
    if chosen is None or chosen.engine == "fast":
        return FastLM
    return StaticLM if chosen.engine == "static" else EagerLM


@torch.inference_mode()
def pack_and_capture(
    model: PreTrainedModel, *, previous: EngineConfig | None = None, threads: int | None = None
) -> EngineConfig:
    """Pack the weights of `model` in place, capture its layers for replay, choose its threads.

    The model's own forward pass stays the reference: what leaves its rounding is undone, and a
    model that sessions of this engine cannot run goes to `eager`, with the reason. The choice is
    registered for the model and returned; a model that has one already is left alone. The threads
    of `previous`, what an earlier run of this experiment chose, are taken over; without it they are
    chosen here, unless the user's `threads` or OMP_NUM_THREADS are set. A prepared model is kept
    apart from a plain one (`ModelCache`): another engine, or transformers' own `generate`, must not
    be timed over packed weights. Raises DataError as `fails_in_session`.
    """
    if choice := engine_config_of(model):
        return choice
    refused = refuse_codes(model, model.dtype) if quantised_layers(model) else None
    if refused:
        dequantise(model)
    linears = len(list(slots(model))) + len(quantised_layers(model))
    try:
        check = LogitCheck(model)
    except Exception as error:  # foreign code may raise anything
        return set_engine_config(
            model, EngineConfig(engine="eager", reason=f"a plain pass fails ({error})")
        )
    prefetch = measured_prefetch(model.dtype)
    packing = pack_model(model)
    lm = FastLM(model)
    if not check.holds_in_session(lm) or fails_in_session(model, narrow=True):
        restore(model)
        model.config._attn_implementation = packing.attention
        check.refine(model)
        packing = pack_model(model, check)
        if packing.problem:
            return set_engine_config(model, EngineConfig(engine="eager", reason=packing.problem))
        lm = FastLM(model)
        lm.append(ordinary(lm.vocab_size, 1), keep=1)
    release_memory()
    replay = CpuModelReplay(model)
    choice = EngineConfig(
        engine="fast",
        reason=refused or packing.reason,
        linears=linears,
        packed=packing.layouts,
        packed_linears=packing.count,
        threads=previous.threads if previous else None,
        reading=prefetch.name if LAYOUTS.keys() & set(packing.layouts.values()) else "",
        cache=lm.token_bytes,
        row_bits=keeps_row_bits(model),
    )
    set_engine_config(model, choice, replay)
    threads_are_set = previous is not None or threads is not None or "OMP_NUM_THREADS" in os.environ
    if not threads_are_set and model.device.type == "cpu":
        choice = with_threads(choice, sum(weight.nbytes for weight in model.parameters()))
        set_engine_config(model, choice, replay)
    return choice


def with_threads(choice: EngineConfig, weight_bytes: int) -> EngineConfig:
    """Measure how busy the machine is; return `choice` with its threads, and others' in `beside`.

    Threads, None for torch's number, are those that have a processor of their own; weights of fewer
    bytes than `SMALL` give no more than `FEW_THREADS` enough to do. `beside` is 0 on an idle
    machine.
    """
    others, usual = contention.at_work(), torch.get_num_threads()
    free = contention.threads_left(usual, others, os.cpu_count() or 1, contention.quota())
    count = min(free, usual) if weight_bytes >= SMALL else min(free, usual, FEW_THREADS)
    busy = round(others) if others >= contention.BUSY else 0
    return replace(choice, threads=None if count == usual else count, beside=busy)


@dataclass
class Packing:
    """The packing of a model."""

    attention: str = ""  # the original implementation
    layouts: dict[str, str] = field(default_factory=dict)  # shape -> layout
    count: int = 0  # packed layers
    reason: str = ""  # why nothing is packed
    problem: str = ""  # why sessions of this engine cannot run the model


def pack_model(model: PreTrainedModel, check: LogitCheck | None = None) -> Packing:
    """Pack `model`, and exchange its activations, norms and attention for kernels, all in place.

    With `check` each step is checked, and undone where it does not hold; a `problem` of the
    returned packing says that no session runs the model, which is stock again. Its `reason` says
    why nothing is packed.
    """

    def holds() -> bool:
        return check is None or check.holds(model)

    packing = Packing(model.config._attn_implementation)
    try:
        pack_layers(model, packing)
        if "dots" in packing.layouts.values() and not holds():
            restore(model)
            pack_layers(model, packing, rounded=False)
        if packing.count and not holds():
            restore_model(model, packing, "packed products differ from stock ones")
    except RuntimeError as error:  # torch's error for a feature that is missing here
        restore_model(model, packing, f"packing fails: {str(error).splitlines()[0]}")
    if routed := _pack_experts(model):
        if holds():
            packing.layouts |= routed
        else:
            restore(model, PackedExperts)
    exchange_activations(model)
    exchange_norms(model)
    if exchange_attention := may_exchange_attention(model):
        model.config._attn_implementation = NAME
    if check is None or (exchange_attention and holds() and fails_in_session(model) is None):
        return packing
    model.config._attn_implementation = packing.attention
    if problem := fails_in_session(model):
        packing.problem = problem
        restore(model)
        dequantise(model)
    return packing


def pack_layers(model: PreTrainedModel, packing: Packing, *, rounded: bool = True) -> None:
    """Pack linear layers and codes of `model` in place; set layouts, count, reason of `packing`.

    The reason says why linear layers stay stock ("": they do not); codes are packed all the same.
    `rounded`: their inputs may be, to 8 bits. RuntimeError: torch lacks a feature here.
    """
    refused = None if quantised_layers(model) and not any(slots(model)) else unpackable(model)
    packing.reason = refused or ""
    size = 0 if refused else packed_bytes(model)
    with huge_pages(size + coded_bytes(model)):
        packed = [] if refused else pack_linear_layers(model)
        packed += pack_codes(model, model.dtype, rounded=rounded)
    packing.layouts, packing.count = dict(packed), len(packed)


def restore_model(model: PreTrainedModel, packing: Packing, reason: str) -> None:
    """Make `model` stock again, codes plain weights; `packing` has `reason` then, and no layers."""
    restore(model)
    dequantise(model)
    packing.layouts, packing.count, packing.reason = {}, 0, reason


def _pack_experts(model: PreTrainedModel) -> dict[str, str]:
    """Have passes count experts; pack all if kernels take them: return shape -> "panels", or {}."""
    if not any(expert_modules(model)):
        return {}
    count_experts_in(model)
    if shapes := expert_shapes(model):
        pack_experts(model)
    return dict.fromkeys(shapes, "panels")


def may_exchange_attention(model: PreTrainedModel) -> bool:
    """Return whether `model` is on a CPU with its usual attention: another is a user's choice."""
    only = not model._supports_sdpa and model._supports_attention_backend
    usual = "eager" if only else "sdpa"
    return model.device.type == "cpu" and bool(model.config._attn_implementation == usual)


def fails_in_session(model: PreTrainedModel, *, narrow: bool = False) -> str | None:
    """Return why sessions of this engine cannot run `model`, by a trial; None: they can.

    A model with sliding windows is tried with windows of a few tokens too; if `narrow`, with those
    alone, and a model without windows is not tried. DataError: its logits are not finite.
    """
    try:
        if not narrow:
            check_rollback(model, FastLM)
        with narrow_windows(model) as windowed:
            if windowed:
                check_rollback(model, FastLM)
    except UnsupportedModelError as error:
        return str(error)
    return None


def keeps_row_bits(model: PreTrainedModel) -> bool:
    """Return whether a token's logits have the same bits in a pass of any size.

    True where all products and attention run in own kernels, which add up each row in one order,
    and widths fill whole vectors: torch computes the rest of a vector by other functions.
    """
    kinds = nn.Linear, Conv1D, Packed, OverCodes, PackedExperts
    products = [module for module in model.modules() if isinstance(module, kinds)]
    panel_layers = [m for m in products if isinstance(m, (PanelLinear, QuantisedPanels))]
    whole = all(module.in_features % PANEL == 0 for module in panel_layers)
    return panel_layers == products and whole and model.config._attn_implementation == NAME


def release_memory() -> None:
    """Give back what the exchange of weights has freed: glibc keeps it for itself otherwise."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)

"""Codes in panels, for the kernel of `quantised.c`: read once, in order, at the memory's speed."""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spsbench.engines.linear_layers import StandIn
from spsbench.engines.quantization.codes import Codes
from spsbench.engines.quantization.layers import OverCodes, QuantisedLinear, quantised_layers
from spsbench.extensions.cpu.kernels.native import kernel, missing
from spsbench.extensions.cpu.kernels.steps import (
    PANEL,
    ZERO,
    BoundOperator,
    bytes_of_codes,
    kernel_of,
    run_op,
)
from spsbench.extensions.cpu.packing.memory import ALIGNED, empty
from spsbench.extensions.cpu.packing.tuning import (
    FEW,
    INPUTS,
    Prefetch,
    measured_prefetch,
    prefetch_arguments,
    prefetch_of,
)

FILL = 32  # inputs: a panel's rows are filled up to a multiple of it, or of a group


class QuantisedPanels(OverCodes, StandIn):
    """`x W^T + b` over codes in panels `[out / 32, bytes]`, as `quantised.c` says.

    A token's result does not depend on how many are in the pass, nor on the number of threads.
    """

    operator = "quantised"  # by quantised.c
    kernels = "product"
    side = 1  # inputs of an output side by side, in codes of 8 bits

    def __init__(self, layer: OverCodes, dtype: torch.dtype = torch.bfloat16) -> None:
        """Lay out `layer`; how it prefetches is chosen for inputs of `dtype`."""
        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        self.group, self.bits, self.least = layer.group, layer.bits, layer.least
        self.bias = layer.bias
        self.weight = nn.Parameter(to_coded_panels(layer, self.side), requires_grad=False)
        prefetch = prefetch_of(dtype, kernel_of(self.kernels, self.bits, self.least))
        self._product = BoundOperator(
            *(self.operator, self.weight, self.bias, self.out_features, self.in_features),
            *(*panel_capacity(self.in_features, self.group), self.bits, self.least),
            *prefetch_arguments(prefetch),
        )

    @classmethod
    def refuses(cls, dtype: torch.dtype) -> str | None:
        """Return why inputs of `dtype` cannot be multiplied so here; None: they can."""
        return missing(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        return self._product(x.contiguous())  # type: ignore[no-any-return]

    @property
    def codes(self) -> Codes:
        """Return the codes of W, with scales and any minima, as read from the panels."""
        room, group = panel_capacity(self.in_features, self.group)
        count, piece = len(self.weight), group * PANEL * self.bits // 8
        blocks = self.weight.detach().view(count, room // group, -1)
        halves = torch.split(blocks[:, :, piece:].contiguous().view(torch.float16), PANEL, -1)
        rows = slice(self.out_features)
        factors = [part.transpose(1, 2).reshape(count * PANEL, -1)[rows] for part in halves]
        words = blocks[:, :, :piece]
        if self.bits == 8:
            paired = words.reshape(count, -1, PANEL, self.side).transpose(2, 3)
            numbers = paired.reshape(count, -1, PANEL).view(torch.int8)
        else:
            eights = words.reshape(count, -1, PANEL, 4)
            both = torch.stack([eights & 15, eights >> 4], -1).flatten(-2).to(torch.int8)
            both -= 0 if self.least else ZERO[self.bits]
            numbers = both.transpose(2, 3).reshape(count, -1, PANEL)
        numbers = numbers.transpose(1, 2).reshape(count * PANEL, room)[rows, : self.in_features]
        return Codes(numbers, factors[0], self.group, self.bits, factors[1] if self.least else None)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantisedLinear:
        bias = None if self.bias is None else self.bias.detach().clone()
        return QuantisedLinear(self.codes, bias)


def panel_capacity(width: int, group: int) -> tuple[int, int]:
    """Return the inputs a panel of `width` has room for, and the inputs of a group."""
    if group >= width:  # one scale for all
        whole = width + -width % FILL
        return whole, whole
    return width + -width % group, group


def shape_of_panels(layer: OverCodes) -> tuple[int, int, int]:
    """Return the number of panels, the groups in each, and the bytes of a group.

    ValueError: the inputs of a group are no multiple of 32.
    """
    room, group = panel_capacity(layer.in_features, layer.group)
    if group % FILL:
        raise ValueError(f"groups of {group} inputs: expected a multiple of {FILL}")
    groups = room // group
    size = bytes_of_codes(room, group, layer.bits, layer.least) // groups
    return -(-layer.out_features // PANEL), groups, size


def to_coded_panels(layer: OverCodes, side: int) -> Tensor:
    """Return the codes of a layer in panels [out / 32, bytes] uint8, as `quantised.c` reads them.

    Of codes of 8 bits, `side` inputs of one output are adjacent. Raises as `shape_of_panels`.
    """
    count, groups, size = shape_of_panels(layer)
    panels, codes = empty((count, groups, size), torch.uint8), layer.codes
    out, width = codes.numbers.shape
    room, group = panel_capacity(width, codes.group)
    piece = group * PANEL * codes.bits // 8
    of_groups = [codes.scales] if codes.minima is None else [codes.scales, codes.minima]
    fill = (0, 0, 0, -out % PANEL)
    scales = [pad(part, fill).view(count, PANEL, groups).transpose(1, 2) for part in of_groups]
    panels[:, :, piece:] = torch.cat(scales, -1).contiguous().view(torch.uint8)
    numbers = pad(codes.numbers, (0, room - width, *fill[2:]))
    numbers = numbers + (ZERO[codes.bits] if codes.minima is None else 0)
    for panel, part in zip(panels, numbers.view(count, PANEL, groups, group), strict=True):
        panel[:, :piece] = _words(part.permute(1, 2, 0), codes.bits, side).flatten(1)
    return panels.view(count, -1)


def _words(part: Tensor, bits: int, side: int) -> Tensor:
    """Pack codes [groups, group, 32], a byte each, as in panels; return uint8 [groups, ...]."""
    groups, group, _ = part.shape
    if bits == 8:
        paired = part.reshape(groups, group // side, side, PANEL).transpose(2, 3)
        return paired.contiguous().view(torch.uint8)
    eights = part.to(torch.uint8).reshape(groups, group // 8, 8, PANEL).transpose(2, 3)
    both: Tensor = eights[..., 0::2] | eights[..., 1::2] << 4
    return both


def measure_prefetch(
    dtype: torch.dtype, layout: type[QuantisedPanels], bits: int, least: bool
) -> None:
    """Set how later layers of `layout` prefetch (`least`: with minima), measured once a machine."""

    def multiply(weights: Tensor, x: Tensor, prefetch: Prefetch) -> None:
        size = bytes_of_codes(INPUTS, FILL, bits, least)
        panels = weights[: len(weights) // size * size].view(-1, size)
        how = INPUTS, INPUTS, FILL, bits, least, *prefetch_arguments(prefetch)
        run_op(layout.operator, x, panels, None, len(panels) * PANEL, *how)

    # Of 4 bits one row waits for memory in any way as soon as all threads read; five rows multiply.
    sizes = (1, FEW) if bits == 8 else (FEW,)
    measured_prefetch(dtype, kernel_of(layout.kernels, bits, least), multiply, sizes)


class QuantisedDots(QuantisedPanels):
    """`x W^T + b` over codes by integer dot products, for inputs rounded to 8 bits.

    Each 32 inputs of a row have one scale, as in llama.cpp: the result differs from that of the
    other layouts by a rounding about as coarse as bfloat16's. It depends neither on how many rows
    are in the pass nor on the number of threads.
    """

    operator = "quantised_dots"  # by coded_dots.c
    kernels = "dots"
    side = 4

    @classmethod
    def refuses(cls, dtype: torch.dtype) -> str | None:
        """Return why not: no kernel, inputs but bfloat16, no integer dot products; None: it can."""
        if reason := super().refuses(dtype):
            return reason
        if dtype != torch.bfloat16:
            return f"inputs in bfloat16 are rounded to 8 bits, not {dtype}"
        return None if kernel("dots", dtype)() else "no integer dot products (AVX2, NEON) here"


CODE_LAYOUTS: dict[str, type[QuantisedPanels]] = {"dots": QuantisedDots, "panels": QuantisedPanels}


def refuse_codes(model: nn.Module, dtype: torch.dtype) -> str | None:
    """Return why codes of `model` cannot be laid out (a device, no kernels); None: they can."""
    layers = [layer for *_, layer in quantised_layers(model)]
    if any(tensor.device.type != "cpu" for layer in layers for tensor in layer.parameters()):
        return "codes are multiplied on the CPU"
    return QuantisedPanels.refuses(dtype)


def pack_codes(
    model: nn.Module, dtype: torch.dtype, *, rounded: bool = True
) -> list[tuple[str, str]]:
    """Lay out every quantised layer of `model` in place; return (shape with bits, layout) of each.

    The layout is the first of `CODE_LAYOUTS` that takes inputs of `dtype`, which may be `rounded`
    to 8 bits; there must be one (`refuse_codes`). How it prefetches is measured, once on a machine.
    """
    layouts = CODE_LAYOUTS if rounded else {"panels": QuantisedPanels}
    packed, unpacked = [], quantised_layers(model)[::-1]
    while unpacked:  # what a layer was is released as soon as it is laid out
        parent, attribute, layer = unpacked.pop()
        name, layout = next(pair for pair in layouts.items() if not pair[1].refuses(dtype))
        packed.append((f"{layer.out_features}x{layer.in_features} int{layer.bits}", name))
        measure_prefetch(dtype, layout, layer.bits, layer.least)
        setattr(parent, attribute, layout(layer, dtype))
    return packed


def coded_bytes(model: nn.Module) -> int:
    """Return the bytes that the panels of the quantised layers of `model` take."""
    return sum(prod(shape_of_panels(layer)) + ALIGNED for *_, layer in quantised_layers(model))

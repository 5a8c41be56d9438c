"""Linear layers whose weights are whole numbers of 8 or 4 bits times a scale in half precision.

A weight is a number times a scale, which float32 holds exactly, or that plus a minimum: so a
quantised model has one distribution, but for the rounding of inputs (`QuantisedDots`).
Embeddings that are looked up stay as they are, tied or not.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from spsbench.engines.linear_layers import Packed, slots, stock_linear, weight_of
from spsbench.engines.quantization.codes import FORMATS, Codes

log = logging.getLogger(__name__)

BLOCK = 2**22  # numbers made of codes at once


class OverCodes(nn.Module, ABC):
    """A linear layer over codes in any layout."""

    out_features: int
    in_features: int
    group: int  # inputs that share a scale
    bits: int
    least: bool  # there are minima
    bias: nn.Parameter | None

    @property
    @abstractmethod
    def codes(self) -> Codes:
        """Return the codes of W."""


class QuantisedLinear(OverCodes):
    """Makes each block of W anew: right anywhere, slow.

    Engines exchange it: `eager` for plain layers (`dequantise`), `fast` for its own kernel. Where a
    GPU keeps its codes, `numbers` are bfloat16, which has 8 bits exactly, with one scale an output.
    """

    def __init__(self, codes: Codes, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = codes.numbers.shape
        self.group, self.bits, self.least = codes.group, codes.bits, codes.minima is not None
        self.numbers = nn.Parameter(codes.numbers, requires_grad=False)
        self.scales = nn.Parameter(codes.scales, requires_grad=False)
        least = codes.minima
        self.minima = least if least is None else nn.Parameter(least, requires_grad=False)
        self.bias = bias if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def codes(self) -> Codes:
        least = None if self.minima is None else self.minima.detach()
        return Codes(self.numbers.detach(), self.scales.detach(), self.group, self.bits, least)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b in x's dtype, summed in float32 or wider unless codes have x's dtype."""
        wide = torch.promote_types(x.dtype, torch.float32)
        codes, step = self.codes, max(1, BLOCK // self.in_features)
        if codes.numbers.dtype == x.dtype:
            output = linear(x, codes.numbers) * codes.scales[:, 0].to(wide)
        else:
            parts = [
                linear(x.to(wide), codes.dense(wide, slice(start, start + step)))
                for start in range(0, self.out_features, step)
            ]
            output = torch.cat(parts, -1)
        return (output if self.bias is None else output + self.bias.to(wide)).to(x.dtype)


_FORMATS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class WideLinear(nn.Module):
    """`x W^T + b` over W in float32, whatever x is: half precision would round W again."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.weight.dtype)
        return linear(x.to(self.weight.dtype), self.weight, bias).to(x.dtype)


@torch.inference_mode()
def quantise(model: nn.Module, name: str) -> int:
    """Quantise linear layers of `model` in place in the format `FORMATS[name]`; return how many.

    These are all of `slots`, and anew those packed or over codes. Embeddings, tied ones too, and
    experts stacked in a parameter stay.
    """
    pending = [(slot.parent, slot.name, slot.layer) for slot in slots(model)]
    laid_out = (Packed, WideLinear, OverCodes)
    for parent in model.modules():
        children = parent.named_children()
        pending += [(parent, at, child) for at, child in children if isinstance(child, laid_out)]
    count = len(pending)
    while pending:  # a layer's weights are released as soon as its codes are there
        parent, at, layer = pending.pop()
        codes = Codes.of(_weight(layer), FORMATS[name])
        setattr(parent, at, QuantisedLinear(codes, layer.bias))
    _FORMATS[model] = name
    return count


def give_codes(model: nn.Module, layers: Mapping[str, Codes], name: str) -> None:
    """Replace stock linear layers at paths `layers` by ones over codes; `name`: for `format_of`.

    LookupError, AttributeError: none of that shape, or hooked or shared; earlier ones are replaced.
    """
    stock = {id(slot.layer): slot for slot in slots(model)}
    for place, codes in layers.items():
        slot = stock.get(id(model.get_submodule(place)))
        if slot is None or slot.weight.shape != codes.numbers.shape:
            raise LookupError(place)
        setattr(slot.parent, slot.name, QuantisedLinear(codes, slot.layer.bias))
    _FORMATS[model] = name


def _weight(layer: Any) -> Tensor:
    """Return W [out, in]."""
    if isinstance(layer, OverCodes):
        return layer.codes.dense(torch.float32)
    return layer.dense() if isinstance(layer, Packed) else weight_of(layer)


def format_of(model: nn.Module) -> str | None:
    """Return the format that `model` was given here; None: its weights are as they were loaded."""
    return _FORMATS.get(model)


def quantised_layers(model: nn.Module) -> list[tuple[nn.Module, str, QuantisedLinear]]:
    """Return parent, name and module of each layer over codes that is not packed."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, QuantisedLinear)
    ]


@torch.inference_mode()
def dequantise(model: PreTrainedModel) -> None:
    """Replace layers over codes in `model` by plain layers over their numbers, in place.

    On a GPU a note is logged, and 8-bit codes of one scale an output stay, as bfloat16, if that is
    the model's dtype. Where half precision would round a number again, a layer is in float32.
    """
    layers = quantised_layers(model)
    on_gpu = bool(layers) and next(model.parameters()).device.type != "cpu"
    if on_gpu:
        log.info("note: a GPU reads int8 as bfloat16 codes if the model is, the rest as float32")
    wide = torch.promote_types(model.dtype, torch.float32)
    kind = stock_linear if wide == model.dtype else WideLinear
    for parent, name, layer in layers:
        whole = layer.bits == 8 and layer.group >= layer.in_features
        if on_gpu and whole and model.dtype == torch.bfloat16:
            layer.numbers = nn.Parameter(layer.numbers.bfloat16(), requires_grad=False)
        else:
            setattr(parent, name, kind(layer.codes.dense(wide), layer.bias))

"""Keys and values in codes of 8 or 4 bits, for drafts by the target over all of its cache.

Some channels of keys are far larger than others, so keys have a scale for each channel of a group
of tokens, and values one for each token (KIVI, Liu et al. 2024, arXiv 2402.02750). The newest rows
are copied as they are, and become codes a group at a time, once (QuantSpec, arXiv 2502.10424,
section 4, which quantises the target's cache too; here it stays whole, so texts are exact).
"""

from collections.abc import Callable
from ctypes import addressof, c_int64
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spsbench.engines.session.cache import PreallocatedLayer, doubled

GROUP = 64  # tokens, as in program.h
WHOLE = 32  # columns of 4 bits that a vector of the kernel holds
LOWEST = {8: 128.0, 4: 16.0}  # number that code 0 stands for, as in attention.c
STEPS = {8: 382.0, 4: 15.0}  # from the lowest number to the highest

ATTEND_OVER_CODES: dict[Any, Callable[..., Tensor | None]] = {}
"""Attention function -> the same where older rows are codes, which extensions add.

It is given query, keys, values, mask, the address of the codes as `CodedRows.address`, and the
named arguments of the attention function; it returns None for what it does not take.
"""


def encode(rows: Tensor, axis: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return codes of `rows` [H, G, 64, D], and scales [H, G, 2, n] with one for each along `axis`.

    A code of 8 bits is the lower byte of a bfloat16 from 128 to 510; one of 4 bits counts from 16.
    """
    rows = rows.float()
    least, most = rows.aminmax(dim=axis, keepdim=True)
    step = (most - least) / STEPS[bits]
    step = torch.where(step > 0, step, torch.ones_like(step))
    least = least - LOWEST[bits] * step
    numbers = (rows - least) / step
    if bits == 8:
        codes = numbers.to(torch.bfloat16).view(torch.int16) - 0x4300
    else:
        codes = (numbers - LOWEST[bits]).round()
    scales = torch.cat([step.flatten(2)[:, :, None], least.flatten(2)[:, :, None]], dim=2)
    return codes.clamp(0, 2**bits - 1).to(torch.uint8), scales


def decode(codes: Tensor, scales: Tensor, axis: int, bits: int) -> Tensor:
    """Return the rows [H, G, 64, D] in float32 that codes stand for; `axis` as in `encode`."""
    if bits == 8:
        numbers = (codes.to(torch.int16) + 0x4300).view(torch.bfloat16).float()
    else:
        numbers = codes.float() + LOWEST[bits]
    step, least = scales.unsqueeze(axis + 1).unbind(2)
    return numbers * step + least


def lay_out(codes: Tensor, bits: int) -> Tensor:
    """Return codes [H, G, n, m, 2] as bytes [H, G, n m 2 bits / 8] in the kernel's order."""
    if bits == 8:
        return codes.flatten(2)
    halves = codes.reshape(*codes.shape[:2], -1, 2, WHOLE)
    return (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).flatten(2)


def take_apart(laid: Tensor, bits: int, shape: tuple[int, int]) -> Tensor:
    """Return codes [H, G, n, m, 2] from the kernel's order; `shape` is (n, m)."""
    if bits == 4:
        laid = laid.reshape(*laid.shape[:2], -1, WHOLE)
        laid = torch.stack([laid & 15, laid >> 4], dim=3).flatten(2)
    return laid.reshape(*laid.shape[:2], *shape, 2)


class CodedRows:
    """Older keys and values of a layer, in codes of `bits` bits.

    Attributes:
        groups: of tokens, that are read.
    """

    def __init__(self, bits: int) -> None:
        self.bits, self.groups, self._room = bits, 0, 0
        self._record = (c_int64 * 7)()  # as program.h has it
        self._held: list[Tensor] = []  # keys, their scales, values and theirs; [H, room, ...]

    @property
    def address(self) -> int:
        """Return the address of the record that the kernel reads; 0: there are no codes."""
        self._record[4] = self.groups
        return addressof(self._record) if self.groups else 0

    def put(self, keys: Tensor, values: Tensor, first: int) -> None:
        """Encode keys and values [H, n, D] of whole groups, from the group `first` on."""
        keys, values = (
            rows.reshape(len(rows), -1, GROUP, rows.shape[2]) for rows in (keys, values)
        )
        of_keys, key_scales = encode(keys, 2, self.bits)
        of_values, value_scales = encode(values, 3, self.bits)
        width = values.shape[3]
        # beside each other lie two channels of keys, and two tokens of values
        of_keys = of_keys.reshape(*of_keys.shape[:3], -1, 2).transpose(2, 3)
        of_values = of_values.reshape(*of_values.shape[:2], -1, 2, width).transpose(3, 4)
        coded = lay_out(of_keys, self.bits), key_scales, lay_out(of_values, self.bits), value_scales
        end = first + keys.shape[1]
        if end > self._room:
            self._widen(coded, first, doubled(end, self._room))
        for held, new in zip(self._held, coded, strict=True):
            held[:, first:end] = new

    def _widen(self, like: tuple[Tensor, ...], kept: int, room: int) -> None:
        wider = [new.new_zeros(new.shape[0], room, *new.shape[2:]) for new in like]
        for new, held in zip(wider, self._held, strict=False):
            new[:, :kept] = held[:, :kept]
        self._held, self._room = wider, room
        self._record[:] = [*map(Tensor.data_ptr, wider), 0, room, self.bits]

    def decoded(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values [1, H, n, D] that the codes stand for, in float32."""
        keys, key_scales, values, value_scales = (held[:, : self.groups] for held in self._held)
        width = key_scales.shape[-1]
        of_keys = take_apart(keys, self.bits, (width // 2, GROUP)).transpose(2, 3).flatten(3)
        of_values = take_apart(values, self.bits, (GROUP // 2, -1)).transpose(3, 4).flatten(2, 3)
        rows = (
            decode(of_keys, key_scales, 2, self.bits),
            decode(of_values, value_scales, 3, self.bits),
        )
        return rows[0].flatten(1, 2)[None], rows[1].flatten(1, 2)[None]

    def attend(
        self,
        forward: Any,
        module: nn.Module,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        more: Any,
    ) -> Tensor:
        """Return attention [1, m, H, D] over the codes and, after them, `keys` and `values`."""
        over_codes = ATTEND_OVER_CODES.get(forward)
        if over_codes is not None:
            attended = over_codes(query, keys, values, mask, self.address, **more)
            if attended is not None:
                return attended
        older = [rows.to(keys.dtype) for rows in self.decoded()]
        if mask is not None:
            mask = pad(mask, (older[0].shape[2], 0))
        whole = (torch.cat(pair, dim=2) for pair in zip(older, (keys, values), strict=True))
        output: Tensor = forward(module, query, *whole, mask, **more)[0]
        return output


class QuantisedLayer(PreallocatedLayer):
    """The newest rows of a layer, and codes of the older ones in `past`."""

    def __init__(self, bits: int) -> None:
        super().__init__(None)
        self.past = CodedRows(bits)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Return the addresses of keys, values and codes, and the capacity in tokens."""
        return *super().addresses[:3], self.past.address

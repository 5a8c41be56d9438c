"""Matrices as whole numbers of 8 or 4 bits, each with a scale of its group in half precision."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 64  # quantised at once: their float32 numbers stay in a processor's caches


class Format(NamedTuple):
    """Format of quantised weights."""

    bits: int  # 8 or 4
    group: int | None  # inputs that share a scale; None: all of an output


FORMATS = {"int8": Format(8, None), "int4": Format(4, 32), "int4-64": Format(4, 64)}
"""Bits of a weight, by the words of `settings.models.QUANTISED`."""


class Codes(NamedTuple):
    """A matrix [out, in]: number times scale, and where there are minima plus that."""

    numbers: Tensor  # [out, in] int8: -128 to 127 or -8 to 7; 0 to 15 over minima
    scales: Tensor  # [out, groups] float16
    group: int
    bits: int
    minima: Tensor | None = None  # [out, groups] float16, of 4 bits alone

    @classmethod
    def of(cls, weight: Tensor, kind: Format) -> "Codes":
        """Return `weight` [out, in] rounded to the nearest codes of the format `kind`.

        Codes of 8 bits are -127 to 127; those of 4 bits -8 to 7: the number of a group that is
        farthest from 0 becomes -8 times its scale, which may be negative (as in llama.cpp's Q4_0).
        """
        group = kind.group or weight.shape[1]
        blocks = torch.split(weight.detach(), ROWS)
        parts = [_round_to_codes(rows, group, kind.bits) for rows in blocks]
        numbers, scales = (torch.cat(part) for part in zip(*parts, strict=True))
        return cls(numbers, scales, group, kind.bits)

    def dense(self, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """Return W [out, in], its `rows`, made in `dtype`; exact from float32 on without minima."""
        width = self.numbers.shape[1]
        numbers = pad(self.numbers[rows], (0, -width % self.group))
        groups: Tensor = numbers.to(dtype).unflatten(1, (-1, self.group))  # type: ignore[no-untyped-call]
        groups *= self.scales[rows].to(dtype)[..., None]
        if self.minima is not None:
            groups += self.minima[rows].to(dtype)[..., None]
        return groups.flatten(1)[:, :width]


def _round_to_codes(weight: Tensor, group: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return codes [out, in] int8 and scales [out, groups] float16; the last group may be short."""
    out, width = weight.shape
    values = pad(weight.to(torch.float32, copy=True), (0, -width % group)).view(out, -1, group)
    size, first_widest = values.abs().max(-1, keepdim=True)
    if bits == 8:
        lowest, highest, scales = -127, 127, size / 127
    else:
        lowest, highest, scales = -8, 7, values.gather(-1, first_widest) / -8
    halves = scales.half()
    scales = halves.float()
    numbers = values.div_(scales.masked_fill_(scales == 0, 1)).round_().clamp_(lowest, highest)
    return numbers.to(torch.int8).view(out, -1)[:, :width], halves.squeeze(-1)

"""Panels that are multiplied by a processor's matrix unit: 16 rows at the price of one.

Newer Intel processors have one (AMX), and the kernel of `tiles.c` uses it for bfloat16. Passes over
long drafts, trees and prompts then cost what one token costs, as long as memory gives the weights.
"""

import torch
from torch import Tensor

from spsbench.engines.kernels.native import kernel
from spsbench.engines.packing.panels import PanelLinear

DEEP = 32  # inputs of a tile, as in tiles.c


class TileLinear(PanelLinear):
    """`x W^T + b` over W in the same panels; the order of each sum is another.

    As there it does not depend on how many rows are in the pass, nor on the number of threads.
    """

    operator = "tiles"  # by tiles.c

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """What panels refuse; other numbers, parts of tiles, or no such unit."""
        if why := super().refuses(weight):
            return why
        if weight.dtype == torch.bfloat16 and weight.shape[1] % DEEP:
            return f"{weight.shape[1]} inputs do not fill tiles of {DEEP}"
        return no_unit(weight.dtype)


def no_unit(dtype: torch.dtype) -> str | None:
    """Why no matrix unit multiplies inputs of `dtype`, else None; there are kernels."""
    if dtype != torch.bfloat16:
        return f"matrix units are used for bfloat16, not {dtype}"
    return None if has_unit() else "no matrix unit (AMX) for bfloat16 here"


def has_unit() -> bool:
    """Whether this process may use a matrix unit; there are kernels."""
    return bool(kernel("tiled", torch.bfloat16)())

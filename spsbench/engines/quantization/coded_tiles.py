"""Codes that a processor's matrix unit multiplies: the panels are the same, the kernel another."""

import torch

from spsbench.engines.packing.tiles import no_unit
from spsbench.engines.quantization.panels import QuantisedPanels


class QuantisedTiles(QuantisedPanels):
    """`x W^T + b` over codes by the matrix unit; the order of each sum is another.

    As there it does not depend on how many rows are in the pass, nor on the number of threads.
    """

    operator = "quantised_tiles"  # by coded_tiles.c

    @classmethod
    def refuses(cls, dtype: torch.dtype) -> str | None:
        """Other inputs than bfloat16, or no such unit."""
        return super().refuses(dtype) or no_unit(dtype)

"""Rows of `sps doctor` about the compiled engine on this machine."""

from collections.abc import Iterator

from spsbench.extensions.cpu.kernels.native import KINDS, library
from spsbench.extensions.cpu.packing.panels import has_unit
from spsbench.extensions.cpu.packing.tuning import measured_prefetch


def report_kernels() -> Iterator[tuple[str, str]]:
    """Yield whether there are compiled kernels, or why not, and how they prefetch weights."""
    kernels = library()
    if isinstance(kernels, str):
        yield "kernels", f"none: {kernels}"
        return
    yield "kernels", "compiled" + (", for the matrix unit (AMX) too" if has_unit() else "")
    for dtype, kind in KINDS.items():
        yield "weights", f"{kind}: {measured_prefetch(dtype)} (measured here)"

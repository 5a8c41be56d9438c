"""What bounds each kernel, by rows of inputs: memory, or arithmetic.

    .venv/bin/python benchmarks/rows.py                            # a minute
    SPSBENCH_MARCH=x86-64-v3 .venv/bin/python benchmarks/rows.py   # the kernels for AVX2

One product over weights that no cache holds, for 1 to 8 and 16 rows of inputs, which alternate,
with every usable core. In the same repetitions it is measured how fast the cores read those
weights, and how many operations a second the kernel's own instructions reach without memory
(`rows.c`). The roofline is the longer of both times; `over one` is a time over that of one row.
Results are kept by processor and instructions in results/rows.json and rows.md.
"""

import argparse
import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from pairs.random_pairs import WIDTHS
from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.extensions.cpu.kernels import native
from spsbench.extensions.cpu.packing.coded_panels import (
    QuantisedDots,
    QuantisedPanels,
    measure_prefetch,
)
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import PanelLinear
from spsbench.extensions.cpu.packing.tuning import (
    Prefetch,
    measured_prefetch,
    prefetch_arguments,
)
from spsbench.hardware.environment import usable_cores
from timing import RESULTS, alternate, keep, milliseconds, ratio, seconds

PEAKS = Path(__file__).with_name("rows.c")
KERNELS = ("float32", "bfloat16", "int8", "int4")
ROWS = (*range(1, 9), 16)
READ = Prefetch("into", 2048)  # how memory is read for comparison
WARM_UP = 2
REPEATS_OF_PEAK = 1_000_000  # of 10 instructions: about two milliseconds


def layer(name: str, out: int, width: int) -> nn.Module:
    """Return a linear layer of random weights as the kernel `name` reads it."""
    weight = torch.randn(out, width, generator=torch.Generator().manual_seed(0))
    with huge_pages(weight.nbytes):
        if name not in FORMATS:
            dtype = getattr(torch, name)
            measured_prefetch(dtype)
            return PanelLinear(weight.to(dtype), None)
        kind = QuantisedPanels if QuantisedDots.refuses(torch.bfloat16) else QuantisedDots
        codes = QuantisedLinear(Codes.of(weight.bfloat16(), FORMATS[name]), None)
        measure_prefetch(torch.bfloat16, kind, codes.bits, codes.least)
        return kind(codes)


def peaks() -> ctypes.CDLL:
    """Compile and load `rows.c`."""
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "rows.so")
        include = f"-I{Path(native.__file__).parent}"
        command = [*compiler, *native.FLAGS, include, "-shared", str(PEAKS), "-o", str(library)]
        subprocess.run([*command, *native._libraries()], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.instructions.restype = ctypes.c_char_p
    size, number = ctypes.c_long, ctypes.c_int
    loaded.read_bytes.argtypes = [ctypes.c_void_p, size, number, size, number]
    for name in KERNELS:
        function = getattr(loaded, f"peak_{name}")
        function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_int]
    return loaded


def measure(
    name: str, width: int, weights: int, repeats: int, peaks: ctypes.CDLL
) -> list[dict[str, Any]]:
    """Return a row of results for each number of rows of inputs."""
    out, threads = weights // width // 32 * 32, torch.get_num_threads()
    module = layer(name, out, width)
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    inputs: list[Tensor] = [torch.randn(rows, width).to(dtype) for rows in ROWS]
    panels: Any = module.weight
    size = panels.nbytes // 4096 * 4096
    hint = prefetch_arguments(READ)
    peak_loop = getattr(peaks, f"peak_{name}")
    operations = peak_loop(REPEATS_OF_PEAK, threads)
    calls: dict[Any, Callable[[], float]] = {
        rows: partial(seconds, partial(module, x)) for rows, x in zip(ROWS, inputs, strict=True)
    }
    calls["peak"] = partial(seconds, partial(peak_loop, REPEATS_OF_PEAK, threads))
    read_panels = partial(peaks.read_bytes, panels.data_ptr(), size, *hint, threads)
    calls["read"] = partial(seconds, read_panels)
    times = alternate(calls, repeats, WARM_UP)
    peak, read = operations / median(times["peak"]), size / median(times["read"])
    bounds = {rows: max(panels.nbytes / read, 2 * rows * out * width / peak) for rows in ROWS}
    results = []
    for rows in ROWS:
        taken = median(times[rows])
        results.append(
            {
                "weights": name,
                "inputs": width,
                "rows": rows,
                "ms": milliseconds(times[rows]),
                "GOPS": round(2e-9 * rows * out * width / taken, 1),
                "peak": round(1e-9 * peak, 1),
                "GB/s": round(1e-9 * panels.nbytes / taken, 1),
                "read": round(1e-9 * read, 1),
                "roofline over one": round(bounds[rows] / bounds[1], 2),
                "over one": ratio(times[rows], times[1]),
            }
        )
    return results


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kernels", nargs="*", default=KERNELS, choices=KERNELS)
    options.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    options.add_argument("--weights", type=int, default=2**27, help="of a product")
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--threads", type=int, default=usable_cores())
    flags = options.parse_args()
    if (reason := native.missing(torch.float32)) is not None:
        options.error(reason)
    torch.set_num_threads(flags.threads)
    loaded = peaks()
    with torch.inference_mode():
        rows = [
            row
            for name in flags.kernels
            for width in flags.widths
            for row in measure(name, width, flags.weights, flags.repeats, loaded)
        ]
    instructions = loaded.instructions().decode()
    keep(RESULTS / "rows", instructions, rows, threads=flags.threads)


if __name__ == "__main__":
    main()

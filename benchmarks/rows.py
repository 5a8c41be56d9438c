"""What bounds each kernel, by rows of inputs: memory, or arithmetic.

    .venv/bin/python benchmarks/rows.py                            # a minute
    SPSBENCH_MARCH=x86-64-v3 .venv/bin/python benchmarks/rows.py   # the kernels for AVX2

One product over weights that no cache holds, for 1 to 8 and 16 rows of inputs, which take turns,
with every usable core. In the same turns it is measured how fast the cores read those weights, and
how many operations a second the kernel's own instructions reach without memory (`rows.c`). The
roofline is the longer of both times; `over one` is a time over that of one row: the median over
turns, with its quartiles. Results are kept by processor and instructions in results/rows.json and
rows.md.
"""

import argparse
import ctypes
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
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
from spsbench.hardware.environment import cpu_kind, usable_cores

RESULTS = Path(__file__).parent / "results"
PEAKS = Path(__file__).with_name("rows.c")
KERNELS = ("float32", "bfloat16", "int8", "int4")
ROWS = (*range(1, 9), 16)
READ = Prefetch("into", 2048)  # how memory is read for comparison
WARM_UP = 2  # turns
TURNS_OF_PEAK = 1_000_000  # of 10 instructions: about two milliseconds


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


def seconds(call: Callable[[], Any]) -> float:
    """Time a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measured(
    name: str, width: int, weights: int, turns: int, peaks: ctypes.CDLL
) -> list[dict[str, Any]]:
    """Return a row of results for each number of rows of inputs."""
    out, threads = weights // width // 32 * 32, torch.get_num_threads()
    module = layer(name, out, width)
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    inputs: list[Tensor] = [torch.randn(rows, width).to(dtype) for rows in ROWS]
    panels = module.weight
    size = panels.nbytes // 4096 * 4096
    hint = prefetch_arguments(READ)
    peak_loop = getattr(peaks, f"peak_{name}")
    operations = peak_loop(TURNS_OF_PEAK, threads)
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    reads, rates = [], []
    for turn in range(turns + WARM_UP):
        rate = operations / seconds(lambda: peak_loop(TURNS_OF_PEAK, threads))
        read = size / seconds(lambda: peaks.read_bytes(panels.data_ptr(), size, *hint, threads))
        spent = [seconds(lambda x=x: module(x)) for x in inputs]  # type: ignore[misc]
        if turn < WARM_UP:
            continue
        rates.append(rate)
        reads.append(read)
        for rows, taken in zip(ROWS, spent, strict=True):
            times[rows].append(taken)
    peak, read = median(rates), median(reads)
    bounds = {rows: max(panels.nbytes / read, 2 * rows * out * width / peak) for rows in ROWS}
    results = []
    for rows in ROWS:
        taken = median(times[rows])
        low, _, high = quantiles(
            [few / one for few, one in zip(times[rows], times[1], strict=True)], n=4
        )
        ratio = median(few / one for few, one in zip(times[rows], times[1], strict=True))
        results.append(
            {
                "weights": name,
                "inputs": width,
                "rows": rows,
                "ms": round(1e3 * taken, 2),
                "GOPS": round(2e-9 * rows * out * width / taken, 1),
                "peak": round(1e-9 * peak, 1),
                "GB/s": round(1e-9 * panels.nbytes / taken, 1),
                "read": round(1e-9 * read, 1),
                "roofline over one": round(bounds[rows] / bounds[1], 2),
                "over one": round(ratio, 2),
                "quartiles": [round(low, 2), round(high, 2)],
            }
        )
    return results


def page(kept: dict[str, Any]) -> str:
    """Return the tables of all processors in Markdown."""
    lines = ["# A product by rows of inputs", ""]
    for name, record in kept.items():
        head = list(record["rows"][0])
        how = f"`{record['command']}`, {record['instructions']}, {record['threads']} threads"
        lines += [f"## {name}", "", how, ""]
        lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        for row in record["rows"]:
            cells = [
                " to ".join(map(str, row[key])) if key == "quartiles" else str(row[key])
                for key in head
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kernels", nargs="*", default=KERNELS, choices=KERNELS)
    options.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    options.add_argument("--weights", type=int, default=2**27, help="of a product")
    options.add_argument("--turns", type=int, default=15)
    options.add_argument("--threads", type=int, default=usable_cores())
    options.add_argument("--out", type=Path, default=RESULTS)
    flags = options.parse_args(argv)
    if (reason := native.missing(torch.float32)) is not None:
        options.error(reason)
    torch.set_num_threads(flags.threads)
    loaded = peaks()
    with torch.inference_mode():
        rows = [
            row
            for name in flags.kernels
            for width in flags.widths
            for row in measured(name, width, flags.weights, flags.turns, loaded)
        ]
    march = os.environ.get(native.MARCH)
    variable = f"{native.MARCH}={march} " if march else ""
    words = [Path(sys.executable).name, "benchmarks/rows.py", *(argv or sys.argv[1:])]
    record = {
        "command": variable + shlex.join(words),
        "instructions": loaded.instructions().decode(),
        "threads": flags.threads,
        "rows": rows,
    }
    flags.out.mkdir(parents=True, exist_ok=True)
    path = flags.out / "rows.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[cpu_kind()] = record
    path.write_text(json.dumps(kept, indent=1) + "\n")
    (flags.out / "rows.md").write_text(page(kept))
    print(page({"this run": record}))


if __name__ == "__main__":
    main()

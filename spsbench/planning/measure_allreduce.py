"""Measure all-reduces: `torchrun ... -m spsbench.planning.measure_allreduce FILE`.

Over gloo, in float32, in turns by size; the median of each size. Between machines the file
describes the link itself; on one machine, the remaining capacity of the processors.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from spsbench.errors import UnavailableError
from spsbench.planning.forecast.links_and_shapes import MeasuredLink, link_json, read_link

SIZES = (512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes
TURNS = 60
WITHIN = 300  # seconds for the ranks of this machine to finish


def reduces() -> list[tuple[float, float]]:
    """Return [[bytes, seconds], ...]; every rank of a process group must call this."""
    import torch
    import torch.distributed as dist

    states = {size: torch.ones(size // 4) for size in SIZES}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(TURNS):
        for size, state in states.items():
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(state)
            if turn:
                times[size].append(time.perf_counter() - began)
            state.fill_(1.0)
    return [(float(size), median(laps)) for size, laps in times.items()]


def between_ranks_here(ranks: int) -> MeasuredLink:
    """Measure the link between `ranks` processes of this machine, started by torchrun.

    Raises:
        UnavailableError: the processes did not start, or did not end.
    """
    with tempfile.TemporaryDirectory(prefix="spsbench-link-") as name:
        file = Path(name) / "link.json"
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [
            sys.executable,
            *torchrun,
            "-m",
            "spsbench.planning.measure_allreduce",
            str(file),
        ]
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                timeout=WITHIN,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise UnavailableError(
                f"ranks of this machine did not measure their link ({type(error).__name__}): "
                "expected torchrun to start them. Name the link's numbers with `link`"
            ) from error
        return MeasuredLink(read_link(file).times, "between processes of this machine")


def main() -> None:
    """Run one rank started by torchrun; rank 0 writes the file."""
    import torch.distributed as dist

    if len(sys.argv) != 2:
        sys.exit("usage: torchrun --nproc-per-node N -m spsbench.planning.measure_allreduce FILE")
    dist.init_process_group("gloo")
    points = reduces()
    if dist.get_rank() == 0:
        text = json.dumps(link_json(dist.get_world_size(), points), indent=1)
        Path(sys.argv[1]).write_text(text + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

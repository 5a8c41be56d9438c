"""Memory of a rank's share of a model, and the time of an all-reduce between ranks of this machine.

Makes a Llama shape of a billion parameters, loads it in one process and then over ranks that
torchrun starts, and scores a few tokens; each process tells its peak memory over what the imports
took.

    .venv/bin/python benchmarks/ranks.py

writes results/ranks.json. Goal: a rank of two needs 0.6 of what one process does, at most.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

OUT = Path(__file__).parents[1] / "results" / "ranks.json"
MIB = 2**20
WIDTH = 2048
TOKENS = (1, 5, 17, 65)  # of a pass: K + 1
TURNS = 100
DTYPE = "bfloat16"


def make(folder: Path, layers: int) -> int:
    """A checkpoint whose weights are all one small number; returns how many they are."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    for weight in model.parameters():
        weight.data.fill_(0.001)
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def peak() -> int:
    """Peak resident bytes of this program; ru_maxrss would count its parent's at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def reduces() -> dict[str, dict[str, float]]:
    """Tokens of a pass -> milliseconds of an all-reduce of their states, in float32."""
    import torch
    import torch.distributed as dist

    found = {}
    for tokens in TOKENS:
        states, times = torch.ones(tokens, WIDTH), []
        for _ in range(TURNS):
            began = time.perf_counter()
            dist.all_reduce(states)
            times.append(1e3 * (time.perf_counter() - began))
        found[str(tokens)] = {"least_ms": min(times), "median_ms": median(times)}
    return found


def work(folder: Path) -> None:
    """In a process of its own: load, score, and write down what it took."""
    import torch
    from transformers import LlamaForCausalLM  # noqa: F401 (an import that all of them pay)

    from spsbench.engines.eager import Eager
    from spsbench.hardware.ranks import ranks
    from spsbench.models.loader import load_model, load_shared
    from spsbench.parallel.process_group import connect
    from spsbench.settings.execution import Access
    from spsbench.settings.models import ModelSpec

    here, told = ranks(), {}
    if here.size > 1:
        connect()
        told["all_reduce"] = reduces()
    before = peak()
    spec = ModelSpec("", dtype=DTYPE)
    if here.size > 1:
        shared = replace(spec, parallel=f"tp:{here.size}")
        model = load_shared(folder, shared, Access(offline=True))
    else:
        model = load_model(folder, spec)
    Eager().session(model).append(torch.arange(9), keep=1)
    told |= {"peak_mib": (peak() - before) / MIB, "rank": here.rank}
    (folder / f"told-{here.size}-{here.rank}").write_text(json.dumps(told))


def run(folder: Path, size: int) -> list[dict[str, Any]]:
    """What each of `size` ranks wrote down."""
    mine = [str(Path(__file__).resolve()), "--work", str(folder)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    subprocess.run([sys.executable, *(torchrun if size > 1 else []), *mine], check=True)
    files = [folder / f"told-{size}-{rank}" for rank in range(size)]
    return [json.loads(file.read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=Path, help="a folder; used by the benchmark itself")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = make(folder, asked.layers)
        told = {str(size): run(folder, size) for size in asked.sizes}
    whole = told["1"][0]["peak_mib"]
    most = {size: max(each["peak_mib"] for each in of) / whole for size, of in told.items()}
    found = {
        "parameters": parameters,
        "dtype": DTYPE,
        "width": WIDTH,
        "machine": platform.processor() or platform.machine(),
        "share_of_one": most,
        "ranks": told,
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["share_of_one"]))


if __name__ == "__main__":
    main()

"""How long a model takes to load from the page cache: transformers' own way and this project's.

Each way has a process of its own, which imports everything first; then it loads, and then it runs
one pass of a token, as transformers maps files, which are read in that pass alone. Ways take turns.
Memory is touched and freed just before: the first touch of a page that a virtual machine's host has
taken back costs up to 1.7 s a GB on an AMD EPYC (0.1 s otherwise), whoever asks for it.

    transformers   AutoModelForCausalLM.from_pretrained
    eager          what `--engine eager` does
    cold           what `fast` does with compiled kernels and nothing else kept
    warm           what `fast` does from the second time on
    int8, int4     the same with `--weights`

    .venv/bin/python benchmarks/loading.py                   # three shapes, two dtypes: 15 minutes
    .venv/bin/python benchmarks/loading.py --shapes smollm2-135m --dtypes bfloat16 --profile warm

writes results/loading.json and .md: medians of wall time and of processor time of all threads.
Random weights are saved once in a temporary folder (2.2 GB at most), in bfloat16, one shape at a
time. The goal: `warm` within 1.3 of transformers' own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pairs.random_pairs import SHAPES

RESULTS = Path(__file__).parent / "results"
WAYS = ("transformers", "eager", "cold", "warm", "int8", "int4")
CACHE = "XDG_CACHE_HOME"

MAKE = """
import sys
sys.path.insert(0, sys.argv[3])
import torch
from pairs.random_pairs import SHAPES
from transformers import AutoModelForCausalLM
kind, sizes, _ = SHAPES[sys.argv[1]]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(kind(**sizes), dtype=torch.bfloat16)
model.save_pretrained(sys.argv[2])
"""

LOAD = """
import json, sys, time
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM
from spsbench.engines.eager import Eager
from spsbench.extensions.cpu.fast import Fast
from spsbench.models.loader import settle
from spsbench.models.source import source_of
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec

folder, way, dtype, profile = sys.argv[1:]

def ours(engine):
    spec = ModelSpec(id=folder, dtype=dtype, weights=way if way.startswith("int") else "checkpoint")
    source = source_of(spec, Access(offline=True))
    def load():
        model = source.model(Path(folder), mapped=True)
        half.append(clocks())
        engine.prepare(model)
        settle(model)
        return engine.session(model)
    return load

def stock():
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    half.append(clocks())
    return Eager().session(model.eval())

def clocks():
    return time.perf_counter(), time.process_time()

def since(first, last):
    return [b - a for a, b in zip(first, last)]

def touch(gigabytes):
    torch.ones(gigabytes * 2**28).sum()

half = []
load = stock if way == "transformers" else ours(Eager() if way == "eager" else Fast())
if profile == "1":
    import cProfile, pstats
    watch = cProfile.Profile(time.process_time)
    lm = watch.runcall(load)
    pstats.Stats(watch).sort_stats("cumulative").print_stats(60)
    sys.exit()
touch(6)
began = clocks()
lm = load()
loaded = clocks()
lm.append(torch.tensor([5]), keep=1)
done = clocks()
print(json.dumps({"read": since(began, half[0]), "load": since(began, loaded),
                  "with a pass": since(began, done)}))
"""


def run(program: str, *arguments: str, cache: Path | None = None) -> str:
    """What a program says in an interpreter of its own."""
    environment = dict(os.environ) if cache is None else os.environ | {CACHE: str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def without_choices(cache: Path) -> None:
    """Leave the compiled kernels alone, and remove all else."""
    kernels = cache / "spsbench" / "kernels"
    for kept in kernels.glob("*.json"):
        kept.unlink()


def measured(
    name: str, folder: Path, dtype: str, cache: Path, repeats: int, ways: Sequence[str]
) -> dict[str, Any]:
    """Medians by way and by how far it went: [wall, processor] seconds."""
    caches = {way: cache / ("cold" if way == "cold" else "kept") for way in ways}
    for way in ways:  # compiles, reads the files, and keeps what there is to be kept
        run(LOAD, str(folder), way, dtype, "0", cache=caches[way])
    taken: dict[str, list[dict[str, list[float]]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            if way == "cold":
                without_choices(caches[way])
            told = run(LOAD, str(folder), way, dtype, "0", cache=caches[way])
            taken[way].append(json.loads(told.splitlines()[-1]))
    row: dict[str, Any] = {"shape": name, "dtype": dtype}
    for way, each in taken.items():
        row[way] = {
            part: [round(median(one[part][i] for one in each), 3) for i in (0, 1)]
            for part in each[0]
        }
    return row


def page(rows: Sequence[dict[str, Any]], ways: Sequence[str]) -> str:
    """The tables in Markdown."""
    lines = []
    for i, clock in enumerate(("wall time", "processor time of all threads")):
        for part in ("load", "with a pass"):
            lines += ["", f"{part}, s of {clock}", ""]
            lines += ["| shape | dtype | " + " | ".join(ways) + " | warm : transformers |"]
            lines += ["|---" * (len(ways) + 3) + "|"]
            for row in rows:
                times = [row[way][part][i] for way in ways]
                both = {"warm", "transformers"} <= row.keys()
                ratio = row["warm"][part][i] / row["transformers"][part][i] if both else 0
                cells = [row["shape"], row["dtype"], *times, f"{ratio:.2f}"]
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="*", default=["gpt2-large", "tinyllama", "smollm2-135m"])
    options.add_argument("--dtypes", nargs="*", default=["bfloat16", "float32"])
    options.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--profile", choices=WAYS, help="where one load spends its time")
    options.add_argument("--folder", type=Path, help="of the weights; kept")
    options.add_argument("--out", type=Path, default=RESULTS)
    flags = options.parse_args()
    if unknown := set(flags.shapes) - SHAPES.keys():
        options.error(f"--shapes {', '.join(unknown)}: expected {', '.join(SHAPES)}")
    rows = []
    for name in flags.shapes:
        with tempfile.TemporaryDirectory() as temporary:
            cache = Path(temporary) / "cache"
            folder = (flags.folder or Path(temporary)) / name
            if not (folder / "config.json").is_file():
                run(MAKE, name, str(folder), str(Path(__file__).parent))
            for dtype in flags.dtypes:
                if flags.profile:
                    run(LOAD, str(folder), "warm", dtype, "0", cache=cache)
                    print(run(LOAD, str(folder), flags.profile, dtype, "1", cache=cache))
                    continue
                rows.append(measured(name, folder, dtype, cache, flags.repeats, flags.ways))
                print(json.dumps(rows[-1]), flush=True)
    if rows:
        flags.out.mkdir(parents=True, exist_ok=True)
        (flags.out / "loading.json").write_text(json.dumps(rows, indent=1) + "\n")
        (flags.out / "loading.md").write_text(page(rows, flags.ways))


if __name__ == "__main__":
    main()

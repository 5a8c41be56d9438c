"""A pass over two ranks beside what is predicted of it from one rank and the link alone.

    .venv/bin/python benchmarks/ranks_predicted.py

In one process group of this machine, one thread a rank: all-reduces are timed, then passes of one
rank alone and of both together in turns, on a Llama shape of random weights. Prints, for each
number of tokens, the median of one rank, the prediction (`forecast/shared.py`), the median of both
and their ratio. Ranks share the processors of the machine, so run it where at least two are free.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from ranks import WIDTH, make

TOKENS, CONTEXT, TURNS = (1, 2, 5, 9, 17), 64, 15


def work(folder: Path) -> None:
    """One rank."""
    import torch

    from spsbench.engines.eager import Eager
    from spsbench.hardware.ranks import ranks
    from spsbench.models.loader import load_model, load_shared
    from spsbench.models.prepare import follow
    from spsbench.parallel.tensor_parallel import channel, end
    from spsbench.planning.forecast.links_and_shapes import MeasuredLink, Sizes
    from spsbench.planning.measure_allreduce import reduces
    from spsbench.settings.execution import Access
    from spsbench.settings.models import ModelSpec

    torch.set_num_threads(1)
    channel()
    link = MeasuredLink({2: reduces()}, "here")
    if ranks().rank > 0:
        follow()
        return
    spec = ModelSpec("", dtype="float32")
    models = {
        "one": load_model(folder, spec),
        "both": load_shared(folder, replace(spec, parallel="tp:2"), Access(offline=True)),
    }
    text = torch.arange(CONTEXT + TOKENS[-1])
    sessions = {name: Eager().session(model) for name, model in models.items()}
    times: dict[tuple[str, int], list[float]] = {}
    for name, lm in sessions.items():
        lm.append(text[:CONTEXT], keep=1)
        for n in TOKENS:
            times[name, n] = []
    for turn in range(TURNS + 1):
        for n in TOKENS:
            for name, lm in sessions.items():
                began = time.perf_counter()
                lm.append(text[CONTEXT : CONTEXT + n], keep=n)
                lm.commit(CONTEXT)
                if turn:
                    times[name, n].append(time.perf_counter() - began)
    config = models["one"].config
    sizes = Sizes(config.num_hidden_layers, config.hidden_size, config.vocab_size, 4)
    rows = []
    for n in TOKENS:
        one, both = median(times["one", n]), median(times["both", n])
        waits = sizes.waits(2, link, n)
        told = one / 2 + waits
        rows.append(
            {
                "tokens": n,
                "one_ms": 1e3 * one,
                "waits_ms": 1e3 * waits,
                "predicted_ms": 1e3 * told,
                "both_ms": 1e3 * both,
                "both_over_predicted": both / told,
            }
        )
    (folder / "told.json").write_text(json.dumps(rows))
    end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=3, help=f"of width {WIDTH}")
    parser.add_argument("--work", type=Path, help="a folder; used by the benchmark itself")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, asked.layers)
        mine = [str(Path(__file__).resolve()), "--work", name]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run([sys.executable, *torchrun, *mine], check=True)
        for row in json.loads((folder / "told.json").read_text()):
            print(json.dumps({k: round(v, 3) for k, v in row.items()}))


if __name__ == "__main__":
    main()

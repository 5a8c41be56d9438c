"""Two workers of a thread each beside one process with two threads: the same records of the pair.

    python benchmarks/beside.py --prompts 40              processes; under four minutes on two cores
    python benchmarks/beside.py --prompts 40 --on ray     the same over Ray

Records a second are counted from the first record to the last, so that loading is in none of
them; `seconds` has everything, from the call to the summary. The order is drawn: a machine drifts.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from spsbench.benchmark.bench import bench

TOKENS = 64


def made(prompts: int, folder: Path, **where: Any) -> dict[str, Any]:
    """One run, and how fast its records came."""
    seen: list[tuple[float, int]] = []
    began = time.perf_counter()
    bench(
        "xsum",
        data="mini",
        limit=prompts,
        k=4,
        max_new_tokens=TOKENS,
        ignore_eos=True,
        watch=lambda pace: seen.append((time.perf_counter(), pace.done)),
        out=folder,
        **where,
    )
    whole = time.perf_counter() - began
    counted = [(at, done) for at, done in seen if done]
    (first, least), (last, most) = counted[0], counted[-1]
    return {
        "records": most,
        "records_a_second": round((most - least) / (last - first), 3),
        "seconds": round(whole, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--on", default="processes:2")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    crew: dict[str, Any] = {"on": asked.on, "threads": 1}
    ways = {"one process, 2 threads": {"threads": 2}, f"{asked.on}, 1 thread each": crew}
    names = list(ways) * 2
    random.Random(asked.seed).shuffle(names)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            found = made(asked.prompts, Path(folder) / str(number), **ways[name])
            print(json.dumps({"way": name, **found}), flush=True)


if __name__ == "__main__":
    main()

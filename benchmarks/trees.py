"""What a pass over a tree of drafts costs: `.venv/bin/python benchmarks/trees.py FILE`.

A tree pass of n rows stands beside a chain's. A pass is timed in turn as a chain and as a tree, so
that a machine's drift falls on both: medians, and the ratio of each pair of passes, in wall time
and in processor time of all threads.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import spsbench
from spsbench.loop.types import LM
from spsbench.plugins import make

ROWS = (9, 17, 33, 65, 129)
PAST = 200  # tokens before a pass


def bushy(nodes: int) -> torch.Tensor:
    """Parents of a tree of random shape, the same every time."""
    draw = random.Random(nodes)
    return torch.tensor([draw.randrange(-1, node) for node in range(nodes)])


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor milliseconds."""
    wall, worked = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - worked)


def one_pass(lm: LM, tokens: torch.Tensor, parents: torch.Tensor | None) -> tuple[float, float]:
    """A pass over PAST cached tokens, which are left as they were."""
    spent = timed(lambda: lm.append(tokens, len(tokens), parents))
    lm.commit(PAST)
    return spent


def passes(lm: LM, repeats: int) -> list[dict[str, float]]:
    """Tree and chain of each number of rows, in turn."""
    found, ids = [], torch.arange(PAST) % lm.vocab_size
    lm.commit(0)
    lm.append(ids, keep=0)
    for rows in ROWS:
        tokens, parents = ids[:rows], bushy(rows - 1)
        for _ in range(4):  # kernels are chosen, layers traced and compared
            one_pass(lm, tokens, None), one_pass(lm, tokens, parents)
        pairs = []
        for turn in range(repeats):
            order = (None, parents) if turn % 2 else (parents, None)
            spent = {given is None: one_pass(lm, tokens, given) for given in order}
            pairs.append((*spent[True], *spent[False]))
        chain, chain_worked, tree, tree_worked = zip(*pairs, strict=True)
        ratios = (
            sorted(b / a for a, b in zip(chain, tree, strict=True)),
            sorted(b / a for a, b in zip(chain_worked, tree_worked, strict=True)),
        )
        middle = [statistics.median(side) for side in (chain, tree, *ratios)]
        names = "chain_ms", "tree_ms", "ratio", "processor_ratio"
        spread = {f"ratio_{p}": ratios[0][repeats * p // 100] for p in (25, 75)}
        found.append({"rows": rows, **dict(zip(names, middle, strict=True)), **spread})
        print(" ".join(f"{name} {value:.4g}" for name, value in found[-1].items()), flush=True)
    return found


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="nano")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    pair = spsbench.load(target=given.target, drafter="none", threads=given.threads)
    lm: LM = make("engines", pair.cell.target.engine).session(pair.loaded.target)
    made = passes(lm, given.repeats)
    given.file.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()

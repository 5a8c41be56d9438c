"""What a pass costs over weights of 8 and 4 bits: by integer dot products, and by floats as before.

    .venv/bin/python benchmarks/codes.py                                  # two shapes: 5 minutes
    .venv/bin/python benchmarks/codes.py --shapes smollm2-135m --repeats 50

Random weights in real shapes, in bfloat16, over a context of 200 tokens. Passes of one row and of
five take turns over all kinds of weights; writes results/codes.json and .md: medians of wall time,
and v(4), the median ratio of five rows to one in the same turn, with the interval of its quartiles.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM

from pairs.random_pairs import SHAPES
from spsbench.engines.quantization.layers import quantise
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.packing.coded_panels import CODE_LAYOUTS, QuantisedPanels
from spsbench.loop.types import LM

RESULTS = Path(__file__).parent / "results"
KINDS = ("bfloat16", "int8", "int8 by floats", "int4", "int4 by floats")
PAST, FEW = 200, 5


def session(shape: str, kind: str) -> LM:
    """Open a session of `fast` over `shape` with weights of a kind."""
    made, sizes, _ = SHAPES[shape]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made(**sizes), dtype=torch.bfloat16).eval()
    word, _, floats = kind.partition(" ")
    if word != "bfloat16":
        quantise(model, word)
    layouts = {"panels": QuantisedPanels} if floats else CODE_LAYOUTS
    with patch.dict(CODE_LAYOUTS, layouts, clear=True):
        Fast().prepare(model)
    lm = Fast().session(model)
    lm.append(torch.arange(PAST), keep=0)
    return lm


def milliseconds(lm: LM, rows: int) -> float:
    """Time a pass of `rows` rows, and take them back."""
    began = time.perf_counter()
    lm.append(torch.arange(rows), keep=rows)
    taken = time.perf_counter() - began
    lm.commit(PAST)
    return 1e3 * taken


def measured(shape: str, kinds: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """Return a row for each kind of weights."""
    sessions = {kind: session(shape, kind) for kind in kinds}
    turns: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for turn in range(repeats + 3):
        for kind, lm in sessions.items():
            spent = milliseconds(lm, 1), milliseconds(lm, FEW)
            if turn >= 3:
                turns[kind].append(spent)
    rows = []
    for kind, each in turns.items():
        low, _, high = quantiles([few / one for one, few in each], n=4)
        rows.append(
            {
                "shape": shape,
                "weights": kind,
                "one row, ms": round(median(one for one, _ in each), 2),
                "five rows, ms": round(median(few for _, few in each), 2),
                "v(4)": round(median(few / one for one, few in each), 2),
                "quartiles": [round(low, 2), round(high, 2)],
            }
        )
    return rows


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="*", default=["smollm2-135m", "gpt2-large"])
    options.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    options.add_argument("--repeats", type=int, default=30)
    options.add_argument("--out", type=Path, default=RESULTS)
    flags = options.parse_args()
    if unknown := set(flags.shapes) - SHAPES.keys():
        options.error(f"--shapes {', '.join(unknown)}: expected {', '.join(SHAPES)}")
    with torch.inference_mode():
        rows = [
            row for shape in flags.shapes for row in measured(shape, flags.kinds, flags.repeats)
        ]
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[key]) for key in head] for row in rows)]
    page = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    flags.out.mkdir(parents=True, exist_ok=True)
    (flags.out / "codes.json").write_text(json.dumps(rows, indent=1) + "\n")
    (flags.out / "codes.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()

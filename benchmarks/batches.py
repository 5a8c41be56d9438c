"""The cost of a common pass of several texts, by ratio to the passes of one text in the same run.

    .venv/bin/python benchmarks/batches.py FILE --target smollm2 --dtype bfloat16 --engine fast

For each size of a batch B and each number of rows of a text r: milliseconds of a pass over B texts,
its ratio to a pass over one text with one row, and the processor time beside the model's own (a
greenlet's switches, gathering and dividing rows) a text. Passes are timed in turn, so that a
machine's drift falls on all of them; least times are compared.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import spsbench
from spsbench.loop.batch import Batch, BatchedLM, Fed
from spsbench.loop.types import LM, Scores
from spsbench.plugins import make

BATCHES, ROWS = (1, 2, 4, 8), (1, 5)
PAST = 128  # tokens of each text before a pass


class Nothing:
    """A session whose passes cost nothing: what remains is the batch's own work."""

    vocab_size, limit, length = 2, None, 1
    scores = Scores(torch.zeros(1, 2), {})

    def shares(self, fed: Fed) -> str:
        """Share all passes."""
        return "nothing"

    def append(self, *given: Any) -> Scores:
        """Return the same scores."""
        return self.scores

    def together(self, every: list[Fed]) -> list[Scores]:
        """Return the same scores for each."""
        return [self.scores] * len(every)


def seconds(call: Any, repeats: int) -> float:
    """The least seconds of a call."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def joint(lms: list[LM], rows: int) -> None:
    """One pass of all sessions, which are left as they were."""
    tokens = torch.arange(rows)
    every = [Fed(lm, tokens, rows, None) for lm in lms]
    if len(lms) == 1:
        lms[0].append(tokens, rows)
    else:
        if lms[0].shares(every[0]) is None:
            raise RuntimeError("passes that cannot be shared")
        lms[0].together(every)
    for lm in lms:
        lm.commit(PAST)


def harness(size: int, passes: int = 200) -> float:
    """Milliseconds a text and pass of a batch whose passes cost nothing."""
    batch, tokens = Batch(size), torch.zeros(1)

    def text() -> None:
        lm = BatchedLM(Nothing(), batch, 0)
        for _ in range(passes):
            lm.append(tokens, 1)

    return 1e3 * seconds(lambda: list(batch.run([text] * size)), 3) / (size * passes)


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--target", default="smollm2")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--engine", default="fast")
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--turns", type=int, default=3)
    given = options.parse_args()
    pair = spsbench.load(
        target=given.target,
        dtype=given.dtype,
        engine=given.engine,
        k=0,
        threads=torch.get_num_threads(),
    )
    engine = make("engines", pair.cell.models.target.engine)
    lms = [engine.session(pair.loaded.target) for _ in range(max(BATCHES))]
    for number, lm in enumerate(lms):
        lm.append(torch.arange(PAST) + number, keep=0)
    best: dict[tuple[int, int], float] = {}
    for turn in range(given.turns):
        for size in BATCHES:
            for rows in ROWS:
                call = partial(joint, lms[:size], rows)
                if turn == 0:
                    seconds(call, 3)  # layers are captured and compared
                spent = 1e3 * seconds(call, given.repeats)
                best[size, rows] = min(spent, best.get((size, rows), spent))
    found = [
        {
            "batch": size,
            "rows": rows,
            "ms": best[size, rows],
            "plain_passes": best[size, rows] / best[1, 1],
            "harness_ms_per_text": harness(size),
        }
        for size in BATCHES
        for rows in ROWS
    ]
    for row in found:
        print(" ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    how = {name: getattr(given, name) for name in ("target", "dtype", "engine")}
    given.file.write_text(json.dumps({**how, "past": PAST, "passes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

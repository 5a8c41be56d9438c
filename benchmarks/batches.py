"""The cost of a common pass of several texts, and the texts of a batch beside other engines.

    .venv/bin/python benchmarks/batches.py FILE --target smollm2 --dtype bfloat16 --engine fast
    .venv/bin/python benchmarks/batches.py FILE --groups 6 --peers-python PEERS/bin/python

For each size of a batch B and each number of rows of a text r: milliseconds of a pass over B texts,
its ratio to a pass over one text with one row, and the processor time beside the model's own (a
greenlet's switches, gathering and dividing rows) a text. Passes are timed in turn, so that a
machine's drift falls on all of them; least times are compared.

With --groups, problems of HumanEval, eight at a time, greedily: plain sampling, `suffix`,
transformers' `generate` (left padding), and llama.cpp over eight sequences, in an order that turns
from group to group. Seconds are from the prompts' ids to the last text; medians over groups.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import peers
import spsbench
from spsbench.hardware.environment import cpu_kind
from spsbench.loop.batch import Batch, BatchedLM, Fed
from spsbench.loop.types import LM, Scores
from spsbench.metrics.surfaces import typical
from spsbench.models.folder import local_folder
from spsbench.models.prompts import ids_of
from spsbench.plugins import make
from spsbench.tasks.humaneval import HumanEval

BATCHES, ROWS = (1, 2, 4, 8), (1, 5)
PAST = 128  # tokens of each text before a pass
SIZE = max(BATCHES)  # texts of a group

Ids = list[list[int]]
Way = Callable[[Ids], Ids]
"""Continue prompts."""


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


def passes(given: argparse.Namespace, pair: Any) -> list[dict[str, float]]:
    """Measure a row for each batch and number of rows."""
    engine = make("engines", pair.cell.target.engine)
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
    return [
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


def by_transformers(folder: Path, tokens: int, ends: list[int]) -> Way:
    """Return batched plain `generate` of transformers, padded at the left."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    how = {"do_sample": False, "max_new_tokens": tokens, "eos_token_id": ends}

    def generate(prompts: Ids) -> Ids:
        width = max(map(len, prompts))
        ids = torch.tensor([[ends[0]] * (width - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
        made = model.generate(ids, attention_mask=mask, pad_token_id=ends[0], **how)
        rows = made[:, width:].tolist()
        until = [next((i for i, t in enumerate(row, 1) if t in ends), tokens) for row in rows]
        return [row[:n] for row, n in zip(rows, until, strict=True)]

    return generate


def by_llama_cpp(folder: Path, tokens: int, ends: list[int], room: int, python: str) -> Way:
    """Return llama.cpp over several sequences of one cache, in an interpreter of its own."""
    out = peers.WORK / folder.name / "gguf" / "bfloat16" / "target"
    file = peers.converted(folder, out, "llamacpp", "bfloat16", python)
    process = subprocess.Popen(
        [python, "-m", "pairs.sequences", file, *map(str, (SIZE, room, torch.get_num_threads()))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(peers.BENCHMARKS)},
    )

    def generate(prompts: Ids) -> Ids:
        json.dump({"prompts": prompts, "tokens": tokens, "ends": ends}, process.stdin)
        print(file=process.stdin, flush=True)
        found: Ids = json.loads(process.stdout.readline())
        return found

    return generate


def texts(given: argparse.Namespace, pair: Any) -> list[dict[str, Any]]:
    """Measure tokens a second of each way over groups of prompts."""
    folder = local_folder(given.target)
    samples = islice(HumanEval().instruct().samples(lambda text: True), SIZE * given.groups)
    prompts = [ids_of(pair.loaded, each.prompt, chat=True, system=None) for each in samples]
    groups = [prompts[at : at + SIZE] for at in range(0, len(prompts), SIZE)]
    ends = [pair.loaded.tokenizer.eos_token_id]
    room = max(map(len, prompts)) + given.tokens

    def ours(k: int, group: Ids) -> Ids:
        how = {"temperature": 0.0, "max_new_tokens": given.tokens, "k": k}
        return [text.tokens for text in pair.generate(group, drafter="suffix", **how)]

    ways = {"plain": partial(ours, 0)}
    ways |= {f"suffix, K = {k}": partial(ours, k) for k in given.k}
    ways["transformers"] = by_transformers(folder, given.tokens, ends)
    if given.peers_python:
        ways["llama.cpp"] = by_llama_cpp(folder, given.tokens, ends, room, given.peers_python)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    same: dict[str, int] = dict.fromkeys(ways, 0)
    for way in ways.values():
        way(groups[0])  # a warm-up
    for turn, group in enumerate(groups):
        order = [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]
        made = {}
        for name in order:
            began = time.perf_counter()
            made[name] = ways[name](group)
            speeds[name].append(sum(map(len, made[name])) / (time.perf_counter() - began))
        for name, each in made.items():
            same[name] += sum(map(list.__eq__, each, made["plain"]))
    first = speeds[f"suffix, K = {given.k[0]}"]
    return [
        {
            "way": name,
            "texts": len(prompts),
            "as_plain": same[name],
            "tokens_a_second": list(typical(np.array(each))),
            "sps_over_it": list(typical(np.array(first) / each)),
        }
        for name, each in speeds.items()
    ]


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--target", default="smollm2")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--engine", default="fast")
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--groups", type=int, default=0, help="of eight texts; 0: passes alone")
    options.add_argument("--tokens", type=int, default=128, help="of a text")
    options.add_argument("--k", type=int, nargs="+", default=[2])
    options.add_argument("--peers-python", default=os.environ.get("SPS_ENGINES_PYTHON"))
    given = options.parse_args()
    pair = spsbench.load(
        target=given.target,
        dtype=given.dtype,
        engine=given.engine,
        k=0,
        threads=torch.get_num_threads(),
    )
    found = {"passes": passes(given, pair), "texts": texts(given, pair) if given.groups else []}
    for row in (*found["passes"], *found["texts"]):
        print(row, flush=True)
    how = {name: getattr(given, name) for name in ("target", "dtype", "engine")}
    values = {"processor": cpu_kind(), **how, "past": PAST, **found}
    given.file.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()

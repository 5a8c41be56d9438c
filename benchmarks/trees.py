"""What a pass over a tree of drafts costs, and the costs that `sequoia` plans its shape with.

    .venv/bin/python benchmarks/trees.py passes FILE     # a tree pass of n rows beside a chain's
    .venv/bin/python benchmarks/trees.py measure FILE    # what `sequoia:file=FILE` reads

Both take --target and --draft and write FILE. A pass is timed in turn as a chain and as a tree, so
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
from corpora import stdlib
from spsbench.loop.types import LM
from spsbench.metrics.sums import by_sibling
from spsbench.models.tokenizers import encode
from spsbench.plugins import make
from spsbench.settings.records import RoundRecord

ROWS = (9, 17, 33, 65, 129)
PAST = 200  # tokens before a pass
SIBLINGS = 8
PROMPT_TOKENS = 96


def stdlib_prompts(tokenizer: Any, count: int) -> list[str]:
    """Openings of top-level functions and classes, spread evenly over the held-out modules."""
    starts = [
        module.text[at:]
        for module in stdlib.load(pinned=False)
        if module.split == "heldout"
        for at in (i + 1 for i in range(len(module.text)) if module.text.startswith("\ndef ", i))
    ]
    long = [ids for text in starts if len(ids := encode(tokenizer, text)) >= PROMPT_TOKENS]
    step = len(long) / count
    return [tokenizer.decode(long[int(i * step)][:PROMPT_TOKENS]) for i in range(count)]


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
    found = []
    ids = torch.arange(PAST) % lm.vocab_size
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


def rounds_of(pair: Any, prompts: list[list[int]], tokens: int, **asked: Any) -> list[RoundRecord]:
    """All rounds of a method over the prompts."""
    found: list[RoundRecord] = []
    for seed, prompt in enumerate(prompts):
        text = pair.generate(prompt, seed=seed, max_new_tokens=tokens, ignore_eos=True, **asked)
        found += text.rounds
    return found


def measure(pair: Any, prompts: list[list[int]], length: int, siblings: str) -> dict[str, Any]:
    """The chance of each child, and the costs of passes."""
    verifier = "match" if siblings == "top" else "recursive"
    shape = f"tree:shape={SIBLINGS}x4x2x1,siblings={siblings}"
    rounds = rounds_of(pair, prompts, length, drafter=shape, verifier=verifier, k=4)
    counted = by_sibling(rounds, SIBLINGS)
    kept, met = counted[:SIBLINGS], counted[SIBLINGS:]
    accept = [round(a / b, 4) for a, b in zip(kept, met, strict=True) if b]
    loaded = pair.loaded
    target, draft = (
        passes(session(pair, model, which), 9)
        for model, which in ((loaded.target, "target"), (loaded.draft, "draft"))
    )
    return {
        "accept": accept,
        "draft": draft[0]["chain_ms"],
        "target": {str(row["rows"]): row["tree_ms"] for row in target},
    }


def session(pair: Any, model: Any, which: str) -> LM:
    """A session as a cell of the pair would have it."""
    spec = getattr(pair.cell, which)
    made: LM = make("engines", spec.engine).session(model)
    return made


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("passes", "measure"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="nano")
    parser.add_argument("--draft", default="nano-draft")
    parser.add_argument("--siblings", default="top")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    given = parser.parse_args()
    pair = spsbench.load(target=given.target, draft=given.draft, threads=given.threads)
    if given.what == "measure":
        prompts = stdlib_prompts(pair.loaded, given.prompts)
        made: Any = measure(pair, prompts, given.length, given.siblings)
    else:
        made = passes(session(pair, pair.loaded.target, "target"), given.repeats)
    given.file.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Speed-up of SpS over ArS for the bundled pair: held-out prompts, both methods interleaved.

Each prompt is continued by both methods in one process, round by round in turn, so that a drifting
machine slows both alike; the interval is over prompts. One warm-up prompt is not counted.

    .venv/bin/python benchmarks/nano_speedup.py

writes results/nano-speedup.json. Prompts: the first 96 tokens of functions of standard-library
modules that were held out from training; news: articles of the held-out generator.
"""

import argparse
import json
import platform
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
import transformers

import spsbench
from spsbench.figures.rates import metrics, speedup
from spsbench.methods.resolve import resolve
from spsbench.models.loader import encode
from spsbench.models.shelf import Loaded, Shelf
from spsbench.runs.generation import Generation, interleave
from spsbench.settings.asked import make_cell
from spsbench.settings.cell import Cell
from spsbench.settings.records import RoundRecord
from spsbench.tasks.corpora import news, stdlib

PROMPT_TOKENS = 96
OUT = Path(__file__).parents[1] / "results" / "nano-speedup.json"


def stdlib_prompts(loaded: Loaded, count: int) -> list[list[int]]:
    """Openings of top-level functions and classes, spread evenly over the held-out modules."""
    starts = [
        module.text[at:]
        for module in stdlib.load(pinned=False)
        if module.split == "heldout"
        for at in (i + 1 for i in range(len(module.text)) if module.text.startswith("\ndef ", i))
    ]
    long = [ids for text in starts if len(ids := encode(loaded.tokenizer, text)) >= PROMPT_TOKENS]
    step = len(long) / count
    return [long[int(i * step)][:PROMPT_TOKENS] for i in range(count)]


def news_prompts(loaded: Loaded, count: int) -> list[list[int]]:
    """One worked example and the start of an article."""
    items = list(islice(news.items(0, "heldout"), 2 * count))
    texts = [news.layout(items[i : i + 1], items[i + 1].document) for i in range(0, 2 * count, 2)]
    return [encode(loaded.tokenizer, text)[:-40] for text in texts]


def measure(cell: Cell, loaded: Loaded, prompts: list[list[int]]) -> dict[str, object]:
    """Pooled figures of both methods and the paired speed-up."""
    ars_cell = resolve(cell.auto_regressive)
    arms: tuple[list[list[RoundRecord]], list[list[RoundRecord]]] = ([], [])
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first is the warm-up
        pair = [
            Generation(ars_cell, loaded, prompt, sample=str(number)),
            Generation(cell, loaded, prompt, sample=str(number)),
        ]
        for _ in interleave(*pair):
            pass
        if number > 0:
            for arm, generation in zip(arms, pair, strict=True):
                arm.append(generation.record.rounds)
    totals = [
        [(sum(r.seconds for r in rounds), sum(r.emitted for r in rounds)) for rounds in arm]
        for arm in arms
    ]
    pooled = [asdict(metrics([r for rounds in arm for r in rounds], 0.0)) for arm in arms]
    for figures in pooled:  # per generation, not of a pool
        del figures["prefill_ms"], figures["ttft_ms"]
    return {"ars": pooled[0], "sps": pooled[1], "speedup": speedup(*totals)._asdict()}


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--k", type=int, nargs="+", default=[4])
    options.add_argument("--verifier", default="sps")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    torch.set_num_threads(flags.threads)

    results = []
    shelf = Shelf(offline=True)
    for k in flags.k:
        cell = resolve(
            make_cell(k=k, verifier=flags.verifier, max_new_tokens=flags.tokens, ignore_eos=True)
        )
        loaded = shelf.load(cell)
        for kind, prompts in (("stdlib", stdlib_prompts), ("news", news_prompts)):
            figures = measure(cell, loaded, prompts(loaded, flags.prompts))
            results.append({"k": k, "verifier": flags.verifier, "prompts": kind, **figures})
            gain = figures["speedup"]
            print(f"K={k} {flags.verifier} {kind}: alpha {figures['sps']['alpha']}, "
                  f"tau {figures['sps']['block_efficiency']:.3f}, speed-up {gain}")  # fmt: skip
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": flags.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "spsbench": spsbench.__version__,
    }
    setting = {"temperature": 1.0, "top_p": 1.0, "tokens": flags.tokens, "prompts": flags.prompts}
    flags.out.write_text(
        json.dumps({"machine": machine, "setting": setting, "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

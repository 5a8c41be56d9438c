"""Speed-up of SpS over ArS for the bundled pair: held-out prompts, both methods interleaved.

Each prompt is continued by both methods in one process, round by round in turn, so that a drifting
machine slows both alike; every figure has its interval over prompts. One warm-up prompt is not
counted. Prompts during which other work had the processors are marked, with * on the screen.

    .venv/bin/python benchmarks/nano_speedup.py

writes results/nano-speedup.json. Prompts: the first 96 tokens of functions of standard-library
modules that were held out from training; news: articles of the held-out generator.
"""

import argparse
import json
import platform
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
import transformers

import spsbench
from corpora import news, stdlib
from peers import ratio, times
from spsbench.benchmark.generation import Generation, interleave
from spsbench.hardware.contention import loaded as is_loaded
from spsbench.hardware.contention import read_clocks
from spsbench.hardware.environment import cpu_name
from spsbench.methods.resolve import resolve
from spsbench.metrics.summaries import Summary, summaries
from spsbench.metrics.sums import LOADED
from spsbench.models.cache import Loaded, ModelCache
from spsbench.models.tokenizers import encode
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access
from spsbench.settings.records import Record
from spsbench.tasks.articles import layout

PROMPT_TOKENS = 96
SHOWN = ("alpha", "block_efficiency", "mean_token_time_ms", "speedup", "predicted_speedup")
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
    texts = [layout(items[i : i + 1], items[i + 1].document) for i in range(0, 2 * count, 2)]
    return [encode(loaded.tokenizer, text)[:-40] for text in texts]


def measure(cell: Cell, loaded: Loaded, prompts: list[list[int]]) -> dict[str, object]:
    """Every figure of both methods with its interval over prompts, and the paired speed-up.

    `speedup` is of totals; `by_prompt` has the median over prompts as well.
    """
    cells = [resolve(cell.auto_regressive), cell]
    records: list[Record] = []
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first is the warm-up
        before = read_clocks()
        pair = [Generation(each, loaded, prompt, sample=str(number)) for each in cells]
        for _ in interleave(*pair):
            pass
        flags = (LOADED,) if is_loaded(before, read_clocks()) else ()
        records += [
            replace(generation.record, cell=each.id, sample=str(number), flags=flags)
            for each, generation in zip(cells, pair, strict=True)
            if number > 0
        ]
    ars, sps = summaries(cells, records)
    plain, own = ({(r.sample, 0): times(r) for r in records if r.cell == each.id} for each in cells)
    return {
        "ars": figures(ars),
        "sps": figures(sps),
        "speedup": sps.speedup._asdict(),
        "by_prompt": ratio(plain, own),
    }


def figures(row: Summary) -> dict[str, object]:
    """What applies, with `mean`, `low`, `high` and `n`; times under load are marked."""
    found = {}
    for name in row.figures:
        estimate, under_load = row.at_any_load(name)
        if estimate is not None and "." not in name:
            found[name] = estimate._asdict() | ({"under_load": True} if under_load else {})
    return found


def in_words(name: str, found: dict[str, float] | None) -> str:
    """`alpha 0.700 (0.655 to 0.744)`, marked where it was taken under load."""
    if found is None:
        return f"{name} n/a"
    low, high = found["low"], found["high"]
    ends = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return f"{name} {found['mean']:.3f}{ends}{'*' if found.get('under_load') else ''}"


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
    model_cache = ModelCache(Access(offline=True))
    for k in flags.k:
        cell = resolve(
            make_cell(k=k, verifier=flags.verifier, max_new_tokens=flags.tokens, ignore_eos=True)
        )
        loaded = model_cache.load(cell)
        for kind, prompts in (("stdlib", stdlib_prompts), ("news", news_prompts)):
            found = measure(cell, loaded, prompts(loaded, flags.prompts))
            results.append({"k": k, "verifier": flags.verifier, "prompts": kind, **found})
            told = {name: found["sps"].get(name) for name in SHOWN}
            print(f"K={k} {flags.verifier} {kind}:", *map(in_words, told, told.values()))
    machine = {
        "processor": cpu_name(),
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

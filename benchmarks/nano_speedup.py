"""Speed-up of SpS over ArS for the bundled pair: held-out prompts, both methods interleaved.

    .venv/bin/python benchmarks/nano_speedup.py

Runs `sps bench` over two kinds of prompts: the first 96 tokens of functions of standard-library
modules that were held out from training, and articles of the held-out generator. Both methods
continue a prompt round by round in turn, so that a drifting machine slows both alike. Writes
results/nano-speedup.json: all figures of both methods, and the speed-up as a median over prompts.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import spsbench
from corpora import news, stdlib
from peers import arms, ratio, write_prompts
from spsbench.models.tokenizers import encode
from spsbench.store.provenance import hardware, versions
from spsbench.tasks.articles import layout

PROMPT_TOKENS = 96
OUT = Path(__file__).parents[1] / "results" / "nano-speedup.json"
WORK = Path("~/.cache/spsbench/nano-speedup").expanduser()


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


def news_prompts(tokenizer: Any, count: int) -> list[str]:
    """One worked example and the start of an article."""
    items = list(islice(news.items(0, "heldout"), 2 * count))
    texts = [layout(items[i : i + 1], items[i + 1].document) for i in range(0, 2 * count, 2)]
    return [tokenizer.decode(encode(tokenizer, text)[:-40]) for text in texts]


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--k", type=int, default=4)
    options.add_argument("--verifier", default="sps")
    options.add_argument("--dtype", default="auto", help="of both models; auto: float32")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer = spsbench.load(target="nano", offline=True).loaded.tokenizer
    results = []
    for kind, prompts in (("stdlib", stdlib_prompts), ("news", news_prompts)):
        write_prompts(WORK / f"{kind}.jsonl", prompts(tokenizer, flags.prompts))
        run = spsbench.bench(
            f"jsonl:path={WORK / kind}.jsonl",
            k=flags.k,
            verifier=flags.verifier,
            dtype=flags.dtype,
            max_new_tokens=flags.tokens,
            ignore_eos=True,
            threads=flags.threads,
            offline=True,
            out=WORK / kind,
            overwrite=True,
        )
        gained = ratio(*(arm for _, arm in sorted(arms(run.folder), key=lambda each: each[0].k)))
        methods = [row | {"task": kind} for row in run.rows()]  # in place of a path
        results.append({"prompts": kind, "by_prompt": gained, "methods": methods})
        print(f"{kind}: speed-up {gained}\n{run}", flush=True)
    setting = {"temperature": 1.0, "top_p": 1.0, **vars(flags), "out": None}
    made = {"machine": hardware() | versions(), "setting": setting, "results": results}
    flags.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()

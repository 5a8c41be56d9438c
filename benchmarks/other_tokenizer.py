"""Drafts of another tokenizer, sampled: how far the first token's law is from the target's.

Tiny random models over two byte-level tokenizers. Of each prompt many texts are made by each way;
the share of each first token is compared with the target's own law, which one forward pass gives.
Total variation of as many draws from that law itself is what chance alone makes of it.

    .venv/bin/python benchmarks/other_tokenizer.py --out results/other-tokenizer.json
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_assisted import CODE, PROMPTS, PROSE, SEED, model, noisy, tokenizer, translated
from spsbench.benchmark.generation import Generation
from spsbench.methods.resolve import resolve
from spsbench.models.loader import encode
from spsbench.models.shelf import Loaded, Shelf
from spsbench.settings.asked import make_cell
from spsbench.settings.cell import Cell
from spsbench.spec import Spec

WAYS = {
    "tli": {"drafter": "tli"},
    "slem": {"drafter": "slem"},
    "transformers (universal)": {"decoder": "hf"},
}


def pair(folder: Path) -> dict[str, str]:
    """A target, and a draft that is much like it in another vocabulary."""
    ours, theirs = tokenizer(PROSE, 290), tokenizer(CODE, 310)
    target = model(len(ours), SEED)
    draft = translated(noisy(target, 0.05), ours, theirs)
    for place, made, words in (("target", target, ours), ("draft", draft, theirs)):
        made.save_pretrained(folder / place)
        words.save_pretrained(folder / place)
    return {place: str(folder / place) for place in ("target", "draft")}


def firsts(cell: Cell, loaded: Loaded, prompt: list[int], texts: int) -> Tensor:
    """[V] how often each token came first."""
    counts = torch.zeros(loaded.vocab_size, dtype=torch.float64)
    for repeat in range(texts):
        generation = Generation(cell, loaded, prompt, str(prompt), repeat)
        for _ in generation:
            pass
        counts[generation.record.tokens[0]] += 1
    return counts / texts


def apart(one: Tensor, other: Tensor) -> float:
    """Total variation."""
    return float((one - other).abs().sum() / 2)


def chance(law: Tensor, texts: int) -> float:
    """Mean total variation of as many draws from the law itself."""
    noise = torch.Generator().manual_seed(SEED)
    drawn = [law.multinomial(texts, replacement=True, generator=noise) for _ in range(100)]
    found = [apart(torch.bincount(d, minlength=len(law)) / texts, law) for d in drawn]
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--texts", type=int, default=1_000, help="of each prompt and way")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.4)
    parser.add_argument("--k", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folders, shelf = pair(Path(name)), Shelf(offline=True)
        for way, method in WAYS.items():
            asked = {
                "k": options.k,
                "max_new_tokens": options.k + 1,
                "temperature": options.temperature,
                "engine": "eager",
            }
            decoder = {"decoder": Spec.parse(method["decoder"])} if "decoder" in method else {}
            method = {key: value for key, value in method.items() if key != "decoder"}
            cell = resolve(make_cell(**folders, **asked, **method).but(**decoder))
            loaded = shelf.load(cell)
            for prompt in PROMPTS[: options.prompts]:
                ids = encode(loaded.tokenizer, prompt)
                with torch.inference_mode():
                    logits = loaded.target(input_ids=torch.tensor([ids])).logits[0, -1]
                law = (logits.double() / options.temperature).softmax(-1)
                found = firsts(cell, loaded, ids, options.texts)
                best = int(law.argmax())
                row = {
                    "way": way,
                    "prompt": prompt,
                    "distance": apart(found, law),
                    "by_chance": chance(law, options.texts),
                    "likeliest": float(law[best]),
                    "likeliest_came": float(found[best]),
                }
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
                rows.append(row)
    if options.out:
        content = {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "texts": options.texts,
            "k": options.k,
            "temperature": options.temperature,
            "rows": rows,
        }
        options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()

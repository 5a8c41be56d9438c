"""Train the bundled pair: `python recipes/nano --out DIR [--work DIR]`.

Each step is skipped where its result is there, and training goes on from its checkpoints: the same
command continues a run that was interrupted.
"""

import argparse
import json
import logging
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from nano.corpus import Corpus, Stream, encode, make_corpus, train_tokenizer
from nano.measure import card, measure
from nano.openings import openings, write_prompts
from nano.train import Shape, Stage, export, train
from spsbench.extensions.training.command import train as train_drafter

log = logging.getLogger("nano")

STAGES = (
    Stage(layers=4, length=256, batch_tokens=4096, steps=1100),
    Stage(layers=8, length=512, batch_tokens=4096, steps=400),
    Stage(layers=16, length=512, batch_tokens=8192, steps=150),
    Stage(layers=16, length=2048, batch_tokens=8192, steps=40),
)
DRAFT = {  # options of `sps train draft`
    "layers": 2,
    "steps": 600,
    "rate": 2e-3,
    "count": 12_000,
    "tokens": 128,
    "prompt_tokens": 128,
    "together": 128,
    "whole": True,
    "temperature": 1.0,
    "batch_tokens": 4096,
    "micro_tokens": 2048,
    "patience": 0,
    "worth": 0.0,
    "cost_seconds": 0.0,
    "evaluations": 3,
}
LONG = {  # and of the one after it; short texts alone would leave the far positions untaught
    "steps": 3600,
    "rate": 1.5e-3,
    "tokens": 1980,
    "prompt_tokens": 64,
    "evaluations": 6,
}
STRETCHES = 1100  # of the training stream, each of LONG["tokens"]


def build(
    corpus: Corpus,
    prompts: Sequence[str],
    out: Path,
    work: Path,
    *,
    shape: Shape,
    stages: Sequence[Stage],
    draft: Mapping[str, Any],
    long: Mapping[str, Any],
    pinned: bool,
) -> None:
    """Make `out/nano` and `out/nano-draft`; what is kept between runs is in `work`.

    The draft learns, by the options `draft`, what the target writes after `prompts`; then, by
    `draft` and `long`, that and long stretches of the training text.
    """
    work.mkdir(parents=True, exist_ok=True)
    tokenizer, ids = prepare(corpus.train, shape, work)
    folders = target, smaller = out / "nano", out / "nano-draft"
    export(train(shape, stages, Stream(ids, 0), work / "target"), tokenizer, target)
    order = torch.randperm(len(ids) // long["tokens"], generator=torch.manual_seed(0))
    whole = ids[: len(order) * long["tokens"]].view(len(order), -1)
    stretches = tokenizer.batch_decode(whole[order[:STRETCHES]])
    train_draft(target, smaller, prompts, stretches, work, draft, {**draft, **long})
    q, p = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in folders
    )
    figures = {
        name: measure(q, p, encode(tokenizer, texts), shape.context)
        for name, texts in corpus.heldout.items()
    }
    facts = {
        "layers": q.config.num_hidden_layers,
        "width": shape.width,
        "size": q.num_parameters(),
        "draft_layers": p.config.num_hidden_layers,
        "draft_size": p.num_parameters(),
        "vocab": shape.vocab,
        "context": shape.context,
        "command": "python recipes/nano --out DIR",
        "python": platform.python_version(),
        "pinned": "pinned by hash" if pinned else "unpinned",
        "stream": len(ids),
        "tokens": sum(stage.steps * stage.batch_tokens for stage in stages),
        "stages": ", then ".join(f"{s.steps} steps at {s.layers} layers" for s in stages),
    }
    (target / "README.md").write_text(card(facts, figures), encoding="utf-8")
    values = {"facts": facts, "figures": {name: asdict(f) for name, f in figures.items()}}
    text = json.dumps(values, indent=1) + "\n"
    (target / "training.json").write_text(text, encoding="utf-8")
    log.info("%s", text)


def prepare(texts: list[str], shape: Shape, work: Path) -> tuple[Any, Tensor]:
    """Return the tokenizer and the training stream [N]; make them at the first call."""
    folder, stream = work / "tokenizer", work / "stream.pt"
    if not stream.exists():
        tokenizer = train_tokenizer(texts, shape.vocab, shape.context)
        tokenizer.save_pretrained(folder)
        torch.save(encode(tokenizer, texts), stream)
    return AutoTokenizer.from_pretrained(folder), torch.load(stream, weights_only=True)


def train_draft(
    target: Path,
    out: Path,
    prompts: Sequence[str],
    stretches: Sequence[str],
    work: Path,
    short: Mapping[str, Any],
    long: Mapping[str, Any],
) -> None:
    """Train a draft model on what the target writes after `prompts`, then on `stretches` too."""
    prompt_file, stretch_file = work / "prompts.jsonl", work / "stretches.jsonl"
    write_prompts(prompt_file, ({"prompt": text[:600]} for text in prompts))
    write_prompts(
        stretch_file, ({"prompt": text[:40], "reference": text[40:]} for text in stretches)
    )
    first, second = work / "draft", work / "draft-long"
    inputs: tuple[dict[str, Any], ...] = (
        {"prompts": (str(prompt_file), "self"), **short},
        {
            **long,
            "start": str(first / "result"),
            "layers": None,
            "texts": first / "texts.jsonl",
            "references": (str(stretch_file),),
        },
    )
    for folder, options in zip((first, second), inputs, strict=True):
        train_drafter("draft", target=str(target), out=folder, resume=folder.exists(), **options)
    shutil.copytree(second / "result", out, dirs_exist_ok=True)


def main() -> None:
    """Read the options and run the recipe."""
    parser = argparse.ArgumentParser(description="Train the bundled pair of models.")
    parser.add_argument("--out", type=Path, required=True, help="folder for nano and nano-draft")
    parser.add_argument("--work", type=Path, default=Path("work/nano"), help="checkpoints")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps; 0.01 for a trial")
    parser.add_argument("--unpinned", action="store_true", help="train on any Python's library")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    scaled = {
        name: max(least, round(DRAFT[name] * options.scale))
        for name, least in (("steps", 10), ("count", 32))
    }
    build(
        make_corpus(pinned=not options.unpinned),
        openings(1000, bodies=9000, examples=2000),
        options.out,
        options.work,
        shape=Shape(),
        stages=[replace(s, steps=max(1, round(s.steps * options.scale))) for s in STAGES],
        draft=DRAFT | scaled,
        long=LONG | {"steps": max(10, round(LONG["steps"] * options.scale))},
        pinned=not options.unpinned,
    )


if __name__ == "__main__":
    main()

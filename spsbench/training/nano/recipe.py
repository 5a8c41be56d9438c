"""The recipe at work: `python -m spsbench.training.nano --out DIR [--work DIR]`.

Every part is kept in the work folder and skipped when it is there, and the two long parts go on
from their checkpoints, so an interrupted run is continued by the same command.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from spsbench.training.nano import data, distill, fivegram, llama, pretrain, tokenizer
from spsbench.training.nano.card import Facts, card
from spsbench.training.nano.data import Mix, Stream
from spsbench.training.nano.distill import Lesson
from spsbench.training.nano.export import rounded, save, to_transformers
from spsbench.training.nano.figures import Sampling, figures
from spsbench.training.nano.llama import Llama, LlamaShape
from spsbench.training.nano.pretrain import Plan, Stage
from spsbench.training.nano.progress import Progress
from spsbench.training.nano.sample import continuations

log = logging.getLogger("nano")

SEED = 0
VOCAB = 4096
MIX = Mix(seed=SEED, news=6000, functions=4000)
HELDOUT_MIX = Mix(seed=SEED, news=400, functions=0)
TARGET = LlamaShape(layers=16, width=192, hidden=512, heads=6, vocab=VOCAB)
KEPT = (0, 15)  # the target's layers that the draft starts from
PLAN = Plan(
    stages=(
        Stage(layers=4, length=256, batch_tokens=4096, steps=1100),
        Stage(layers=8, length=512, batch_tokens=4096, steps=400),
        Stage(layers=16, length=512, batch_tokens=8192, steps=150),
        Stage(layers=16, length=2048, batch_tokens=8192, steps=40),
    ),
    warmup=80_000,
    cooldown=2_120_000,
    rate=6e-3,
    seed=SEED,
)
LESSONS = (
    Lesson(tokens=950 * 2048, cooldown=700 * 2048, warmup=20 * 2048),
    Lesson(
        tokens=100 * 2560,
        cooldown=90 * 2560,
        warmup=5 * 2560,
        batch_tokens=2560,
        length=2048,
        sampled=0.2,
        rate=2e-3,
        micro_tokens=2048,
    ),
)
OWN = Sampling(prompts=384, prompt=32, tokens=96, seed=SEED)  # the target's texts for the draft
JUDGED = Sampling(prompts=64, prompt=128, tokens=128, seed=SEED + 1)  # those for the figures


def prepare(work: Path, *, pinned: bool) -> tuple[Any, Tensor]:
    """The tokenizer and the training stream [N]."""
    folder, stream = work / "tokenizer", work / "stream.pt"
    if not stream.exists():
        texts = data.documents(MIX, "train", pinned=pinned)
        made = tokenizer.train(texts, VOCAB)
        made.save_pretrained(folder)
        torch.save(data.encode(made, texts), stream)
    return AutoTokenizer.from_pretrained(folder), torch.load(stream, weights_only=True)


def own_texts(work: Path, target: Llama, ids: Tensor) -> Tensor:
    """Texts [N, S] that the target wrote after short prompts from its training stream."""
    path = work / "own.pt"
    if not path.exists():
        generator = torch.Generator().manual_seed(OWN.seed)
        starts = torch.randint(len(ids) - OWN.prompt, (OWN.prompts, 1), generator=generator)
        prompts = ids[starts + torch.arange(OWN.prompt)]
        model = to_transformers(target, end=0)
        parts = [continuations(model, p, OWN.tokens, generator) for p in torch.split(prompts, 128)]
        torch.save(torch.cat(parts), path)
    return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def publish(out: Path, work: Path, facts: Facts, ids: Tensor) -> None:
    """Measure the exported pair and write its cards and `training.json`."""
    words = AutoTokenizer.from_pretrained(out / "nano")
    target, draft = (
        AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32).eval()
        for name in ("nano", "nano-draft")
    )
    baseline = fivegram.fit(ids.numpy(), VOCAB)
    modules = data.encode(words, data.library_texts("heldout", pinned=facts.pinned))
    items = data.encode(words, data.news_texts(HELDOUT_MIX, "heldout"))
    stdlib = figures(target, draft, baseline, modules, length=facts.length, sampling=JUDGED)
    news = figures(target, draft, baseline, items, length=512, sampling=JUDGED)
    for name, role in (("nano", "Target"), ("nano-draft", "Draft")):
        text = card(name, role, facts, stdlib, news)
        (out / name / "README.md").write_text(text, encoding="utf-8")
    told = {"facts": asdict(facts), "stdlib": asdict(stdlib), "news": asdict(news)}
    text = json.dumps(told, indent=1) + "\n"
    (out / "nano" / "training.json").write_text(text, encoding="utf-8")
    log.info("%s", text)


def scaled(plan: Plan, scale: float) -> Plan:
    """The plan with every stage shortened by the same factor."""
    stages = tuple(replace(s, steps=max(1, round(s.steps * scale))) for s in plan.stages)
    return replace(plan, stages=stages, cooldown=round(plan.cooldown * scale))


def shortened(lesson: Lesson, scale: float) -> Lesson:
    """The lesson with its tokens and its cooldown shortened by the same factor."""
    steps = max(1, round(lesson.tokens / lesson.batch_tokens * scale))
    tokens = steps * lesson.batch_tokens
    return replace(lesson, tokens=tokens, cooldown=round(lesson.cooldown * scale))


def build(out: Path, work: Path, *, scale: float, pinned: bool) -> None:
    """The whole pipeline, parts already done excepted."""
    work.mkdir(parents=True, exist_ok=True)
    words, ids = prepare(work, pinned=pinned)
    stream = Stream(ids, SEED)
    plan = scaled(PLAN, scale)
    lessons = [shortened(lesson, scale) for lesson in LESSONS]
    llama.compile_layers()
    distill.compile_loss()
    report = Progress("target", 20)
    target = rounded(pretrain.train(TARGET, plan, stream, work / "target.pt", report=report).model)
    save(target, words, out / "nano")
    own = own_texts(work, target, ids)
    draft = distill.sliced(target, KEPT)
    report = Progress("draft", 20)
    for number, lesson in enumerate(lessons):
        path = work / f"draft-{number}.pt"
        draft = distill.teach(draft, target, lesson, stream, own, path, report=report).model
    save(rounded(draft), words, out / "nano-draft")
    facts = Facts(
        target=TARGET,
        draft=draft.shape,
        kept=KEPT,
        target_tokens=plan.tokens,
        far=plan.stages[-1].tokens,
        lesson=sum(lesson.tokens for lesson in lessons),
        long=lessons[-1].tokens,
        sampled=lessons[0].sampled,
        variation=lessons[0].variation,
        stages=", then ".join(
            f"{sum(s.tokens for s in group):,} tokens at {layers} layers"
            for layers, group in groupby(plan.stages, key=lambda stage: stage.layers)
        ),
        stream=len(ids),
        news=MIX.news,
        functions=MIX.functions,
        python=platform.python_version(),
        pinned=pinned,
        seed=SEED,
        command="python -m spsbench.training.nano --out DIR",
        length=TARGET.context,
    )
    publish(out, work, facts, ids)


def main() -> None:
    """Read the options, run what is not done yet."""
    parser = argparse.ArgumentParser(description="Train the bundled pair of models.")
    parser.add_argument("--out", type=Path, required=True, help="folder for nano and nano-draft")
    parser.add_argument("--work", type=Path, default=Path("work/nano"), help="checkpoints")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="0.01 for a trial")
    parser.add_argument("--unpinned", action="store_true", help="train on any Python's library")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    build(options.out, options.work, scale=options.steps_scale, pinned=not options.unpinned)

"""Tokens a second of one thread while a drafter is trained: texts written, and texts learnt.

    .venv/bin/python benchmarks/training_speed.py --texts work/smollm2/draft-ce/texts.jsonl

Processor time, so that other work counts little. Both in float32 and in bfloat16 products: the
texts of a batch (prompts of the file, --tokens each, none ends early), and --steps steps of each
kind, whose tokens are all those of a batch, prompts included. Writes results/training-speed.json.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from spsbench.hardware.memory_kept import keep_memory
from spsbench.loop.sampling import Warp
from spsbench.models.loader import load_model
from spsbench.settings.bundled import fetched_folder
from spsbench.settings.training import DraftTraining, HeadTraining
from spsbench.training.course.batches import Batches
from spsbench.training.course.course import Course, Rules
from spsbench.training.course.precision import BFLOAT16, FLOAT32
from spsbench.training.course.teacher import Teacher
from spsbench.training.losses.hybrid import hybrid
from spsbench.training.students.table import made_student
from spsbench.training.text.many import continued
from spsbench.training.text.texts import read

OUT = Path(__file__).parents[1] / "results" / "training-speed.json"
KINDS: dict[str, DraftTraining | HeadTraining] = {
    "draft of 3 layers": DraftTraining(layers=3),
    "eagle3": HeadTraining(kind="eagle3", draft_vocab=8192, depth=4),
    "medusa": HeadTraining(kind="medusa", draft_vocab=8192),
    "mlp": HeadTraining(kind="mlp", inner=288),
}


def seconds(done: Callable[[], Any]) -> float:
    """Processor seconds of this thread."""
    began = time.process_time()
    done()
    return time.process_time() - began


def main() -> None:
    """Time and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--texts", type=Path, required=True)
    options.add_argument("--together", type=int, default=128)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--only", help="one of bfloat16 and float32")
    flags = options.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    texts = read(flags.texts, None, str).texts
    prompts = [prompt for prompt, _ in texts[: flags.together]]
    found: dict[str, dict[str, float]] = {}
    for numbers in (BFLOAT16, FLOAT32):
        if flags.only not in (None, numbers):
            continue
        model = load_model(
            fetched_folder("smollm2"),
            device="cpu",
            dtype=numbers,
            attention=None,
            trust_remote_code=False,
            allow_pickle=False,
        )
        vocab = model.config.vocab_size
        rates = found[numbers] = {}

        def write(model: Any = model, vocab: int = vocab) -> None:
            continued(
                model,
                prompts,
                most=flags.tokens,
                warp=Warp(0.8),
                ends=frozenset(),
                vocab=vocab,
                seed=0,
            )

        rates["texts"] = len(prompts) * flags.tokens / seconds(write)
        teacher = Teacher(model, vocab)
        counts = torch.bincount(
            torch.tensor([token for _, text in texts for token in text]), minlength=vocab
        )
        rules = Rules(
            loss=hybrid,
            warp=Warp(0.8),
            warped=True,
            rate=1e-3,
            steps=1,
            minutes=1.0,
            micro_tokens=256,
            evaluations=1,
            patience=0,
            worth=0.0,
            products=numbers,
        )
        for name, asked in KINDS.items():
            student = made_student(asked, teacher, None, "smollm2", counts, lambda folder: None)
            batches = Batches(texts, 1024, 0, torch.device("cpu"))
            course = Course(student, teacher, batches, (), rules, Path("none"))
            course._gradients()
            tokens, spent = 0, 0.0
            for step in range(1, flags.steps + 1):
                course.step = step
                tokens += sum(len(p) + len(t) for p, t in (texts[i] for i in batches.chosen(step)))
                spent += seconds(course._gradients)
            rates[name] = tokens / spent
        print(numbers, {name: round(rate) for name, rate in rates.items()}, flush=True)
    values = {"processor": platform.processor() or platform.machine(), "tokens_a_second": found}
    OUT.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A tiny target, texts of it, and students of every kind."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from spsbench.extensions.training.batches import Batches, Teacher, TextBatch, collate
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.extensions.training.students.student import Student
from spsbench.extensions.training.students.table import build_student
from spsbench.extensions.training.texts import Text
from spsbench.spec import Spec
from tests.oracles.models import DEVICE, tiny

VOCAB, LAYERS = 24, 6
KINDS = ("draft", "eagle3", "eagle", "medusa", "mlp", "blockwise", "falcon", "mtp")


def target(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny("llama", vocab=VOCAB, num_hidden_layers=LAYERS, dtype=dtype)


def texts(model: PreTrainedModel, count: int = 6, tokens: int = 14) -> list[Text]:
    """Drawn from the model itself, of unlike lengths."""
    draw = torch.Generator().manual_seed(5)
    made = []
    for number in range(count):
        ids = torch.randint(VOCAB, (1, 3), generator=draw)
        with torch.no_grad():
            for _ in range(tokens + number % 3):
                logits = model(input_ids=ids, use_cache=False).logits[0, -1].cpu()
                ids = torch.cat(
                    [ids, torch.multinomial(logits.double().softmax(-1), 1, generator=draw)[None]],
                    1,
                )
        made.append((ids[0, :3].tolist(), ids[0, 3:].tolist()))
    return made


def student(kind: str, model: PreTrainedModel, **more: Any) -> Student:
    """A student of a tiny target; of a head a vocabulary of its own where it can have one."""
    made: Any
    if kind == "draft":
        made = DraftTraining(layers=2, **more)
    else:
        own = {"draft_vocab": 15} if kind in ("eagle3", "medusa") else {}
        made = HeadTraining(kind=kind, **{"depth": 2 if kind == "falcon" else 3, **own, **more})
    counts = torch.arange(VOCAB) * 7 % 11
    found = build_student(made, Teacher(model, VOCAB), None, "tiny", counts)
    found.network.to(model.dtype)
    return found


def batch(found: list[Text]) -> TextBatch:
    return collate(found, DEVICE)


def folder(kind: str, made: Student, path: Path) -> Path:
    made.write(path, torch.float32)
    return path


RULES = {
    "rate": 1e-2,
    "steps": 8,
    "minutes": 1.0,
    "micro_tokens": 40,
    "evaluations": 4,
    "patience": 0,
    "worth": 0.0,
}


def training(
    learner: Student,
    model: PreTrainedModel,
    texts: list[Text],
    folder: Path | None,
    *,
    loss: str = "hybrid",
    rules: dict[str, Any] | None = None,
    **more: Any,
) -> TrainingLoop:
    """Return the training of a student on all texts but the last two, which are held out."""
    options = DraftTraining(**RULES | (rules or {}))
    batches, held = Batches(texts[:-2], 80, 0), [batch(texts[-2:])]
    teacher = Teacher(model, VOCAB)
    return TrainingLoop(learner, teacher, batches, held, options, Spec(loss), folder, **more)


def weights(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    """Return copies of a student's weights."""
    return {name: weight.clone() for name, weight in loop.student.network.state_dict().items()}

"""A tiny target, texts of it, and students of every kind."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from spsbench.extensions.training.batches import Batches, together
from spsbench.extensions.training.generation import Text
from spsbench.extensions.training.gradients import Rules
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.losses import hybrid
from spsbench.extensions.training.options import DraftTraining, HeadTraining
from spsbench.extensions.training.students.student import Batch, Student
from spsbench.extensions.training.students.table import build_student
from spsbench.extensions.training.teacher import Teacher
from spsbench.loop.sampling import Warp
from tests.oracles.models import tiny

VOCAB, LAYERS = 24, 6
KINDS = ("draft", "eagle3", "eagle", "medusa", "mlp", "blockwise", "falcon")


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
                law = model(input_ids=ids, use_cache=False).logits[0, -1].double().softmax(-1)
                ids = torch.cat([ids, torch.multinomial(law, 1, generator=draw)[None]], 1)
        made.append((ids[0, :3].tolist(), ids[0, 3:].tolist()))
    return made


def student(kind: str, model: PreTrainedModel, **more: Any) -> Student:
    """A student of a tiny target; of a head a vocabulary of its own where it can have one."""
    made: Any
    if kind == "draft":
        made = DraftTraining(layers=2, **more)
    else:
        own = {"draft_vocab": 15} if kind in ("eagle3", "medusa") else {}
        made = HeadTraining(kind=kind, **{"depth": 3, **own, **more})
    counts = torch.arange(VOCAB) * 7 % 11
    found = build_student(made, Teacher(model, VOCAB), None, "tiny", counts, lambda folder: None)
    found.network.to(model.dtype)
    return found


def batch(found: list[Text]) -> Batch:
    return together(found, torch.device("cpu"))


def folder(kind: str, made: Student, path: Path) -> Path:
    made.write(path, torch.float32)
    return path


RULES = Rules(
    loss=hybrid,
    warp=Warp(),
    warped=True,
    rate=1e-2,
    steps=8,
    minutes=1.0,
    micro_tokens=40,
    evaluations=4,
    patience=0,
    worth=0.0,
)


def training(
    learner: Student, model: PreTrainedModel, texts: list[Text], folder: Path | None, **more: Any
) -> TrainingLoop:
    """Return the training of a student on all texts but the last two, which are held out."""
    rules = more.pop("rules", RULES)
    batches, held = Batches(texts[:-2], 80, 0, torch.device("cpu")), [batch(texts[-2:])]
    return TrainingLoop(learner, Teacher(model, VOCAB), batches, held, rules, folder, **more)


def weights(course: TrainingLoop) -> dict[str, torch.Tensor]:
    """Return copies of a student's weights."""
    return {name: weight.clone() for name, weight in course.student.network.state_dict().items()}

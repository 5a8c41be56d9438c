"""The student that a user's settings ask for."""

from typing import Any

from torch import Tensor

from spsbench.errors import DataError
from spsbench.extensions.training.batches import Teacher
from spsbench.extensions.training.options import STUDENTS, DraftTraining, HeadTraining
from spsbench.extensions.training.students.draft import (
    DraftStudent,
    keep_layers,
    open_start,
    prune_and_window,
)
from spsbench.extensions.training.students.student import HeadTarget, Student
from spsbench.models.drafter_weights import load_head
from spsbench.registry import attribute_at
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec


def build_student(
    options: DraftTraining | HeadTraining,
    teacher: Teacher,
    tokenizer: Any,
    name: str,
    counts: Tensor,
) -> Student:
    """Return a new student on the target's device, with its initial weights.

    `tokenizer` and `name` are the target's, the name for config.json; `counts` [V] is how often
    each token occurs in the texts. SpsError: the target, or what is to start from, does not fit the
    options.
    """
    if isinstance(options, DraftTraining):
        if options.start is None:
            model = keep_layers(teacher.model, options.layers)
        else:
            model = open_start(options.start, options.seed, tokenizer, teacher.vocab)
        if options.pruned or options.window:
            model = prune_and_window(model, options.pruned, options.window)
        return DraftStudent(model.to(teacher.parts.device), tokenizer, teacher.vocab)
    head = teacher.model.get_output_embeddings()
    if head is None:
        raise DataError(
            f"{type(teacher.model).__name__} has no output embeddings ({name}): expected a target "
            f"that a head of kind {options.kind} can read"
        )
    embedding, start = teacher.model.get_input_embeddings().weight, None
    if options.start is not None:
        start = load_head(
            ModelSpec(str(options.start), device=str(teacher.parts.device), dtype="float32"),
            Access(offline=True),
            drafter=options.kind,
            overrides={},
            target=(name, teacher.parts.config.to_dict()),
        )
    layers = getattr(teacher.model.get_decoder(), "layers", ())
    target = HeadTarget(teacher.parts, embedding, head.weight, name, counts, start, layers)
    student: Student = attribute_at(STUDENTS[options.kind])(options, target)
    return student

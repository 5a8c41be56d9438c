"""Every kind of student, by what a user asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from spsbench.errors import DataError, MissingError
from spsbench.models.loader import load_tokenizer
from spsbench.models.vocabulary import check_same
from spsbench.settings.training import DraftTraining, HeadTraining
from spsbench.train.course.teacher import Teacher
from spsbench.train.students.blockwise import BlockwiseStudent
from spsbench.train.students.draft import DraftStudent, cut, from_folder
from spsbench.train.students.eagle import EagleStudent
from spsbench.train.students.eagle3 import Eagle3Student
from spsbench.train.students.falcon import FalconStudent
from spsbench.train.students.medusa import MedusaStudent
from spsbench.train.students.mlp import MlpStudent
from spsbench.train.students.student import Student


def made_student(
    asked: DraftTraining | HeadTraining,
    teacher: Teacher,
    tokenizer: Any,
    name: str,
    counts: Tensor,
    load: Callable[[Path], Any],
) -> Student:
    """A new student.

    Args:
        asked: of which kind.
        teacher: whose.
        tokenizer: of the target.
        name: of the target, for the file.
        counts: [V] how often each token is in the texts.
        load: reads a model's folder.

    Raises:
        SpsError: a kind that this target cannot have.
    """
    if isinstance(asked, DraftTraining):
        return _draft(asked, teacher, tokenizer, load)
    head = teacher.model.get_output_embeddings()
    if head is None:
        raise DataError(
            f"{type(teacher.model).__name__} has no output embeddings ({name}): expected a target "
            f"that a head of kind {asked.kind} can read"
        )
    if asked.kind == "eagle3":
        return Eagle3Student(
            teacher.parts,
            head.weight,
            name,
            counts,
            depth=asked.depth,
            draft_vocab=asked.draft_vocab,
            inner=asked.inner,
            seed=asked.seed,
        )
    if asked.kind == "medusa":
        return MedusaStudent(
            teacher.parts,
            head.weight,
            name,
            counts,
            depth=asked.depth,
            draft_vocab=asked.draft_vocab,
        )
    if asked.kind == "blockwise":
        return BlockwiseStudent(
            teacher.parts, name, depth=asked.depth, inner=asked.inner, seed=asked.seed
        )
    if asked.kind == "falcon":
        return FalconStudent(
            teacher.parts,
            name,
            depth=asked.depth,
            block=asked.block,
            inner=asked.inner,
            seed=asked.seed,
        )
    if asked.kind == "mlp":
        embedding = teacher.model.get_input_embeddings().weight
        return MlpStudent(
            teacher.parts,
            embedding,
            head.weight,
            depth=asked.depth,
            inner=asked.inner,
            seed=asked.seed,
        )
    return EagleStudent(teacher.parts, depth=asked.depth, inner=asked.inner, seed=asked.seed)


def _draft(
    asked: DraftTraining, teacher: Teacher, tokenizer: Any, load: Callable[[Path], Any]
) -> DraftStudent:
    if asked.start is None:
        return DraftStudent(cut(teacher.model, asked.layers), tokenizer, teacher.vocab)
    folder = asked.start.expanduser()
    if not (folder / "config.json").is_file():
        raise MissingError(
            f"no config.json ({folder}): expected a model's folder, or the config alone. Check "
            "--from"
        )
    if (folder / "tokenizer.json").is_file():
        check_same(tokenizer, load_tokenizer(folder, trust_remote_code=False))
    made = from_folder(folder, asked.seed, teacher.vocab, load)
    return DraftStudent(made.to(teacher.parts.device), tokenizer, teacher.vocab)

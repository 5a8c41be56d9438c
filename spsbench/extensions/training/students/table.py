"""The kinds of students, and the choice of one by a user's settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from spsbench.checkpoints.config import read_config
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.extensions.training.options import STUDENTS, DraftTraining, HeadTraining
from spsbench.extensions.training.students.draft import (
    DraftStudent,
    check_layers,
    check_prunable,
    check_window,
    cut,
    from_folder,
    pruned,
    windowed,
)
from spsbench.extensions.training.students.head_parts import (
    HeadStudent,
    HeadTarget,
    check_draft_vocab,
)
from spsbench.extensions.training.students.student import Student
from spsbench.extensions.training.teacher import Teacher
from spsbench.extensions.training.texts import FEWEST, read_head
from spsbench.heads.head import Head
from spsbench.models.drafter_weights import load_head
from spsbench.models.folder import local_folder
from spsbench.models.tokenizers import check_same, load_tokenizer
from spsbench.registry import at
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec


def head_class(kind: str) -> type[HeadStudent]:
    """Return the class of the students of a kind of head."""
    student: type[HeadStudent] = at(STUDENTS[kind])
    return student


def check_options(
    options: DraftTraining | HeadTraining, folder: Path, tokenizer: Any, load: Callable[[Path], Any]
) -> None:
    """Refuse settings that do not fit the target, before the target is loaded.

    Args:
        options: settings of the training.
        folder: folder of the target.
        tokenizer: tokenizer of the target.
        load: loads the model of a folder.
    """
    config = read_config(folder)
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) and "hidden_size" not in config else config
    vocab = max(tokenizer.get_vocab().values(), default=-1) + 1
    if isinstance(options, HeadTraining):
        head_class(options.kind)
    if options.texts is not None:
        read_head(options.texts)
    elif options.count < FEWEST:
        raise UsageError(
            f"`count` is {options.count}: expected {FEWEST} or more, some of them to watch on"
        )
    if isinstance(options, HeadTraining):
        check_draft_vocab(options.draft_vocab, vocab)
        return
    layers = next((sizes[n] for n in ("num_hidden_layers", "n_layer") if n in sizes), None)
    if options.start is not None:
        _started(options.start, options.seed, tokenizer, vocab, load)
    elif layers is not None:
        check_layers(options.layers, layers)
    if options.pruned:
        check_prunable(sizes)
    if options.window is not None:
        check_window(sizes if options.start is None else read_config(_folder(options.start)))


def build_student(
    options: DraftTraining | HeadTraining,
    teacher: Teacher,
    tokenizer: Any,
    name: str,
    counts: Tensor,
    load: Callable[[Path], Any],
) -> Student:
    """Return a new student.

    Args:
        options: settings of the training.
        teacher: the target.
        tokenizer: tokenizer of the target.
        name: name of the target, for config.json.
        counts: [V] how often each token occurs in the texts.
        load: loads the model of a folder.
    """
    if isinstance(options, DraftTraining):
        return _draft(options, teacher, tokenizer, load)
    head = teacher.model.get_output_embeddings()
    if head is None:
        raise DataError(
            f"{type(teacher.model).__name__} has no output embeddings ({name}): expected a target "
            f"that a head of kind {options.kind} can read"
        )
    embedding = teacher.model.get_input_embeddings().weight
    start = None if options.start is None else _head(options, teacher, name)
    target = HeadTarget(teacher.parts, embedding, head.weight, name, counts, start)
    return head_class(options.kind)(options, target)


def _head(options: HeadTraining, teacher: Teacher, name: str) -> Head:
    """Return the head to start from, in float32."""
    return load_head(
        ModelSpec(str(options.start), device=str(teacher.parts.device), dtype="float32"),
        Access(offline=True),
        drafter=options.kind,
        overrides={},
        target=(name, teacher.parts.config.to_dict()),
    )


def _draft(
    options: DraftTraining, teacher: Teacher, tokenizer: Any, load: Callable[[Path], Any]
) -> DraftStudent:
    if options.start is None:
        model = cut(teacher.model, options.layers)
    else:
        model = _started(options.start, options.seed, tokenizer, teacher.vocab, load)
    if options.pruned:
        model = pruned(model)
    if options.window is not None:
        model = windowed(model, options.window)
    return DraftStudent(model.to(teacher.parts.device), tokenizer, teacher.vocab)


def _folder(start: Path) -> Path:
    """Return the folder to start from, which may be named as a model is."""
    return local_folder(str(start)) or start


def _started(
    start: Path, seed: int, tokenizer: Any, vocab: int, load: Callable[[Path], Any]
) -> PreTrainedModel:
    folder = _folder(start)
    if not (folder / "config.json").is_file():
        raise MissingError(
            f"no config.json ({folder}): expected a model's folder, or the config alone. Check "
            "`start`"
        )
    if (folder / "tokenizer.json").is_file():
        check_same(tokenizer, load_tokenizer(folder, trust_remote_code=False))
    return from_folder(folder, seed, vocab, load)

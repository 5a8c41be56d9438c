"""Descriptions of heads from their folders; every check precedes the first weight."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, SpsError, UsageError, first_line
from spsbench.models.config import names_head, read_config
from spsbench.models.folder import expanded
from spsbench.models.heads.checkpoint import Checkpoint, checkpoint
from spsbench.models.heads.description import Description, check_kind, check_target, check_tensors
from spsbench.models.heads.formats.format import Format
from spsbench.models.heads.formats.table import FORMATS
from spsbench.settings.cell_from_options import parts_of
from spsbench.spec import Spec

log = logging.getLogger(__name__)

STRANGE = ("speculator", "eagle", "medusa", "dflash", "dspark", "mtpdraft")  # in a kind's name
ANSWERS = ("residual", "feedback", "features", "recurrence", "anyway")
"""Arguments of drafters that settle what a head's files leave open, or say wrongly."""


HEADS = frozenset(head_format.family for head_format in FORMATS)
"""Drafters that read a head in a known format."""


def head_part(drafter: Spec) -> Spec | None:
    """Return the drafter that reads a head in a known format, itself or as a hybrid's part."""
    return next((part for part in parts_of(drafter) if part.name in HEADS), None)


def family_of(folder: Path) -> str | None:
    """Return the drafter of the head in `folder`; None if it is no head, or inside a model.

    A language model with a head inside may be meant as a draft model: its drafter must be named.
    """
    try:
        files = checkpoint(folder)
    except SpsError:
        if claims_head(folder):
            raise
        return None
    head_format = format_of(files)
    if head_format is None and (kind := unknown_head_kind(files)):
        raise no_such(folder, kind)
    return None if head_format is None or head_format.inside else head_format.family


def claims_head(folder: Path) -> bool:
    """Return whether `config.json` says that the folder holds a head."""
    try:
        return names_head(read_config(folder))
    except SpsError:
        return False


def unknown_head_kind(files: Checkpoint) -> str:
    """Return the kind that an unknown head names in its config; nothing if it is no head."""
    config = files.config
    stated = config.get("speculators_model_type") or config.get("model_type")
    words = f"{stated} {files.kind}".lower()
    named = names_head(config)
    return f" of kind {stated or files.kind}" if named or any(w in words for w in STRANGE) else ""


def no_such(folder: Path, kind: str = "") -> DataError:
    """Make the error for a head of an unknown format."""
    kinds = ", ".join(dict.fromkeys(head_format.family for head_format in FORMATS))
    return DataError(
        f"no head that is known, but one{kind or ' of no kind'} ({folder}): expected the "
        f"config.json and the tensors of one of {kinds}. Their formats are in docs/heads.md"
    )


def format_of(files: Checkpoint) -> Format | None:
    """Return the first format that knows a checkpoint."""
    return next((head_format for head_format in FORMATS if head_format.knows(files)), None)


def described(
    folder: Path,
    target: Mapping[str, Any],
    *,
    names: tuple[str, str],
    family: str,
    answers: Mapping[str, Any],
    allow_pickle: bool,
) -> tuple[Checkpoint, Description]:
    """Describe the head in `folder` and check it against its target.

    Args:
        folder: of the head.
        target: config of the target; empty where it is not known.
        names: of target and head, as the user gave them.
        family: the drafter that is to read it.
        answers: arguments of that drafter, which settle what the file leaves open.
        allow_pickle: whether its weights may be a pickle.
    """
    files = checkpoint(folder, answers)
    head_format = format_of(files)
    if head_format is None:
        raise no_such(folder, unknown_head_kind(files))
    if head_format.family != family:
        raise UsageError(
            f"`draft` {names[1]} with `drafter` {family}: that is a head of {head_format.family}. "
            "Leave `drafter` out"
        )
    if files.pickled and not allow_pickle:
        raise DataError(
            f"only pickled weights such as {files.files[0].name} ({folder}): expected safetensors, "
            "as a pickle can run code. Convert the head, or trust its author with `allow_pickle`"
        )
    text = target.get("text_config")
    sizes = text if isinstance(text, Mapping) else target
    layers = next((sizes[k] for k in ("num_hidden_layers", "n_layer") if k in sizes), None)
    check_kind(files.config, files.config_path)
    try:
        description = head_format.describe(files, layers)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"config.json is not that of a head of {family} ({folder}): {first_line(error)}. "
            f"Expected what {head_format.writer} writes. Fetch the head again"
        ) from error
    if not answers.get("anyway"):
        check_name(description, *names, folder)
    if target:
        check_target(description, target, *names, folder)
    check_tensors(description, files)
    return files, description


def check_name(description: Description, target: str, head: str, where: Path) -> None:
    """Refuse a head that names another target than the one that was asked for by its name.

    A folder may hold any model, so that its name says nothing: there the sizes must do.
    """
    trained = description.trained.name
    if trained is None or expanded(target).exists():
        return
    one, two = (name.rstrip("/").rpartition("/")[2].lower() for name in (trained, target))
    if not one.startswith(two) and not two.startswith(one):  # Qwen3-8B is Qwen3-8B-FP8's, too
        raise DataError(
            f"{head} is a head for {trained}, not for {target} ({where}): expected the same model. "
            f"Choose the head of this target, or say `drafter` {description.family}:anyway=true"
        )


def tell(description: Description, name: str) -> None:
    """Print what a head was recognised as."""
    log.info(f"note: {name} is a head: {description}")

"""A head as it was told from its files: which network it is, and which tensor is which weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint

FEW = 4  # names in a message


@dataclass(frozen=True, slots=True)
class Trained:
    """What a head says of the target that it was trained for."""

    name: str | None  # a hub id, as a rule
    width: int  # Ht
    vocab: int | None
    deepest: int = 0  # the last hidden state that it reads


@dataclass(frozen=True, slots=True)
class Description:
    """All that is needed to make the network, before any weight is read."""

    family: str  # the drafter that it is for
    writer: str  # whose names and flags these are
    shape: Any  # of `heads/shapes`
    trained: Trained
    names: Mapping[str, str]  # parameter of the network -> tensor of the file
    wanted: Mapping[str, tuple[int, ...]]  # parameter -> shape
    spare: Mapping[str, str]  # tensors that are not read -> why

    def __str__(self) -> str:
        """`eagle3, written by SpecForge, for Qwen/Qwen3-8B`."""
        told = f", for {self.trained.name}" if self.trained.name else ""
        return f"{self.family}, written by {self.writer}{told}"


def check_tensors(described: Description, files: Checkpoint) -> None:
    """Every tensor is used or known to be spare, none is missing, and each has its shape.

    Raises:
        DataError: with the names of those that do not fit.
    """
    what = f"{described.family} head"
    lacking = [named for named in described.names.values() if named not in files.headers]
    used = {*described.names.values(), *described.spare}
    over = sorted(files.headers.keys() - used)
    if lacking:
        instead = f", and has {listed(over)} that nothing reads" if over else ""
        raise DataError(
            f"the {what} lacks {listed(lacking)}{instead} ({files.folder}): expected all of "
            f"{len(described.names)} tensors. Fetch it again"
        )
    if over:
        raise DataError(
            f"the {what} has {listed(over)} that nothing reads ({files.folder}): expected no other "
            f"tensors than {described.writer} writes for this config.json. It is a kind of head "
            "that is not known"
        )
    for parameter, named in described.names.items():
        found, wanted = files.headers[named].shape, described.wanted[parameter]
        if found != wanted:
            raise DataError(
                f"{named} has the shape {by(found)} ({files.folder}): expected {by(wanted)} by "
                "config.json. Fetch it again"
            )


def check_target(
    described: Description, config: Mapping[str, Any], target: str, head: str, where: Path
) -> None:
    """Refuse a head that was trained for another target.

    Args:
        described: the head.
        config: of the target.
        target: its name, as the user gave it.
        head: the name of the head, likewise.
        where: the folder of the head.

    Raises:
        DataError: with both names.
    """
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) and "hidden_size" not in config else config
    trained = described.trained
    whose = f"{head} is a head for {trained.name or 'another target'}, not for {target} ({where})"
    if trained.name == target:
        whose = f"{head} does not fit {target}, which it names ({where})"
    for key, own in (
        (("hidden_size", "n_embd", "d_model"), trained.width),
        (("vocab_size",), trained.vocab),
    ):
        theirs = next((sizes[each] for each in key if isinstance(sizes.get(each), int)), None)
        if theirs is not None and own is not None and theirs != own:
            raise DataError(
                f"{whose}: expected a target with {key[0]} {own}, and this one has {theirs}. "
                "Choose the head of this target, or fetch it again"
            )
    layers = next(
        (sizes[key] for key in ("num_hidden_layers", "n_layer") if isinstance(sizes.get(key), int)),
        None,
    )
    if layers is not None and trained.deepest >= layers:
        raise DataError(
            f"{whose}: it reads hidden state {trained.deepest}, and the target has {layers} "
            f"layers: expected a state below {layers}. Choose the head of this target"
        )


def listed(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def by(shape: tuple[int, ...]) -> str:
    """`32x64`."""
    return "x".join(map(str, shape)) or "of one number"

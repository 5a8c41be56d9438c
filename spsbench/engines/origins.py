"""Which files a weight was read from, and how: what is made of it lasts as long as they do.

The mark is the parameter's own. One that was given other memory since, or was written to by torch's
operators, has none. What is written past torch, or to `.data`, is not seen: whoever does so removes
the mark.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import transformers
from torch import Tensor, nn


class Origin(NamedTuple):
    """Of one parameter, as it was when it was marked."""

    name: str
    address: int
    version: int


_FILES: dict[str, tuple[Sequence[Path], str]] = {}
"""What each stamp that is on a model was given for."""


def stamp(files: Sequence[Path], how: str) -> str:
    """A digest of files as they are now, to the last change, and of how they are read.

    Raises:
        OSError: one of them is not there.
    """
    told = [how, transformers.__version__]  # which may turn one tensor into another
    for path in files:
        now = path.stat()
        same = now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
        told.append(f"{path.resolve()} {same}")
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def mark(model: nn.Module, files: Sequence[Path], how: str) -> None:
    """Mark every parameter of a model that was read from `files`.

    Tensors of inference mode count no changes, and get no mark.
    """
    stamped = stamp(files, how)
    _FILES[stamped] = files, how
    for name, parameter in model.named_parameters():
        if not parameter.is_inference():
            given = Origin(f"{stamped} {name}", parameter.data_ptr(), parameter._version)
            parameter.origin = given  # type: ignore[attr-defined]


def origin_of(parameter: Tensor) -> str | None:
    """Where the numbers of a parameter are from; None: not from files as they lie there."""
    origin = getattr(parameter, "origin", None)
    if not isinstance(origin, Origin) or parameter.is_inference():
        return None
    now = parameter.data_ptr(), parameter._version
    return origin.name if now == (origin.address, origin.version) else None


def is_fresh(origin: str) -> bool:
    """Whether its files are as they were when it was marked."""
    stamped = origin.partition(" ")[0]
    files, how = _FILES[stamped]
    try:
        return stamp(files, how) == stamped
    except OSError:
        return False

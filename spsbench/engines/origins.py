"""Which files a weight was read from, and how: what is made of it lasts as long as they do.

The mark is the parameter's own. One that was given other memory since, or was written to by torch's
operators, has none. What is written past torch, or to `.data`, is not seen: whoever does so removes
the mark.
"""

import hashlib
from collections.abc import Iterable, Sequence
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
"""What each stamp was made of."""


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
    made = hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    _FILES[made] = files, how
    return made


def mark(model: nn.Module, stamped: str) -> None:
    """Mark every parameter of a model that was read from files so stamped.

    Tensors of inference mode count no changes, and get no mark.
    """
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


def are_fresh(origins: Iterable[str]) -> bool:
    """Whether the files of all are as they were when they were stamped."""
    try:
        return all(stamp(*_FILES[each]) == each for each in {o.partition(" ")[0] for o in origins})
    except OSError:
        return False

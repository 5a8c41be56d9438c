"""Which files a weight was read from, and how: what is made of it lasts as long as they do.

The mark is the parameter's own. One that was written to since, or was given other memory, has none.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import transformers
from torch import Tensor, nn


class Origin(NamedTuple):
    """Of one parameter, as it was when it was marked."""

    name: str
    address: int
    version: int


def stamp(files: Iterable[Path], how: str) -> str:
    """A digest of files as they are now, to the last change, and of how they are read."""
    told = [how, transformers.__version__]  # which may turn one tensor into another
    for path in files:
        now = path.stat()
        same = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
        told.append(f"{path.resolve()} {same}")
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def mark(model: nn.Module, stamped: str) -> None:
    """Mark every parameter of a model that was read from files so stamped."""
    for name, parameter in model.named_parameters():
        given = Origin(f"{stamped} {name}", parameter.data_ptr(), parameter._version)
        parameter.origin = given  # type: ignore[attr-defined]


def origin_of(parameter: Tensor) -> str | None:
    """Where the numbers of a parameter are from; None: not from files as they lie there."""
    origin = getattr(parameter, "origin", None)
    if not isinstance(origin, Origin) or parameter.is_inference():
        return None
    now = parameter.data_ptr(), parameter._version
    return origin.name if now == (origin.address, origin.version) else None

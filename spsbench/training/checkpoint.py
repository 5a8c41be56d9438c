"""Checkpoints of a training: model, optimiser and counters, in files that are whole or absent."""

import io
import re
from pathlib import Path
from typing import Any

import torch

from spsbench.errors import DataError, WriteError
from spsbench.store.atomic import replace_file

KEPT = 2
NAMED = re.compile(r"step-(\d+)\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write `step-N.pt`, and remove all but the newest `KEPT` checkpoints.

    Raises:
        WriteError: no room; earlier checkpoints are untouched.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    write(folder / f"step-{step:08d}.pt", state)
    for _, path in there(folder)[:-KEPT]:
        path.unlink(missing_ok=True)


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a whole file, or leave the previous file unchanged.

    Raises:
        WriteError: no room.
    """
    held = io.BytesIO()
    torch.save(state, held)
    replace_file(path, held.getvalue())


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; errors of the unpickler propagate."""
    held: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return held


def there(folder: Path) -> list[tuple[int, Path]]:
    """List (step, file) of the checkpoints, the oldest first."""
    found = ((NAMED.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return sorted((int(name[1]), path) for name, path in found if name)


def newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, or None if `folder` has no checkpoint.

    Raises:
        DataError: none of the checkpoints can be read.
    """
    files = there(folder)
    for _, path in reversed(files):
        try:
            return read(path)
        except Exception:  # any error of an unpickler: an older checkpoint may be whole
            continue
    if files:
        raise DataError(
            f"no checkpoint can be read ({folder}): expected one of {len(files)}. Start over with "
            "--overwrite"
        )
    return None

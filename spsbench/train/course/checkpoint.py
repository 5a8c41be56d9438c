"""All that changes while something is taught, in files that are whole or not there."""

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
    """Write `step-N.pt`, and remove all but the newest few.

    Raises:
        WriteError: no room; those of before are untouched.
    """
    held = io.BytesIO()
    torch.save(state, held)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    replace_file(folder / f"step-{step:08d}.pt", held.getvalue())
    for _, path in there(folder)[:-KEPT]:
        path.unlink(missing_ok=True)


def there(folder: Path) -> list[tuple[int, Path]]:
    """Steps and files, the oldest first."""
    found = ((NAMED.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return sorted((int(name[1]), path) for name, path in found if name)


def newest(folder: Path) -> dict[str, Any] | None:
    """What was saved last; None where nothing was.

    Raises:
        DataError: no file of them can be read.
    """
    files = there(folder)
    for _, path in reversed(files):
        try:
            held: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # whatever an unpickler raises: an older one may be whole
            continue
        return held
    if files:
        raise DataError(
            f"no checkpoint can be read ({folder}): expected one of {len(files)}. Start over with "
            "--overwrite"
        )
    return None

"""What engines chose by timing in a run: written beside its records, taken over when it goes on.

A choice changes the order in which numbers are added, and so, rarely, a text: a resumed run keeps
to those that it was started with.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.machine.files import read_file
from spsbench.store.atomic import replace_file
from spsbench.store.folder import Shard, shard_name


def choices_path(folder: Path, shard: Shard) -> Path:
    """The choices of a shard: shards may run on different machines."""
    return folder / f"engines-{shard_name(shard)}.json"


def read_choices(folder: Path, shard: Shard) -> dict[str, dict[str, Any]]:
    """Model, dtype and engine -> choice; empty where nothing was chosen yet.

    Raises:
        DataError: the file cannot be read.
    """
    path = choices_path(folder, shard)
    try:
        read = json.loads(read_file(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"unreadable choices ({path}: {error}): expected what `sps` wrote. Delete the file, "
            "and they are made anew"
        ) from error
    if not isinstance(read, dict):
        raise DataError(f"foreign choices ({path}): expected an object. Delete the file")
    return read


def write_choices(folder: Path, shard: Shard, choices: Mapping[str, Any]) -> None:
    """Replace the choices of a shard.

    Raises:
        WriteError: they could not be written; the old ones are untouched.
    """
    text = json.dumps(choices, allow_nan=False, indent=1, sort_keys=True)
    replace_file(choices_path(folder, shard), text.encode("ascii") + b"\n")

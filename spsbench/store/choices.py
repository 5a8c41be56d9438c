"""What engines chose by timing in a run: written beside its records, taken over when it goes on.

A choice changes the order in which numbers are added, and so, rarely, a text: a resumed run keeps
to those that it was started with.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.hardware.files import read_file
from spsbench.store.atomic import replace_file
from spsbench.store.folder import Shard, shard_name
from spsbench.store.shapes import Is, ObjectOf

ANEW = "Delete the file, and they are made anew"
SHAPE = ObjectOf(
    each=ObjectOf(
        {
            "engine": Is(str),
            "reason": Is(str),
            "packed": ObjectOf(each=Is(str)),
            "threads": Is(int, least=1, null=True),
            "linears": Is(int, least=0),
            "packed_linears": Is(int, least=0),
            "beside": Is(int, least=0),
            "reading": Is(str),
            "cache": Is(int, least=0),
            "row_bits": Is(bool),
        }
    )
)
"""Of `engines.choice.Choice`; engines of other packages may keep more."""


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
            f"unreadable choices ({path}: {error}): expected what `sps` wrote. {ANEW}"
        ) from error
    if told := SHAPE.wrong(read, "choices"):
        raise DataError(f"foreign choices ({path}: {told}): expected what `sps` wrote. {ANEW}")
    found: dict[str, dict[str, Any]] = read
    return found


def write_choices(folder: Path, shard: Shard, choices: Mapping[str, Any]) -> None:
    """Replace the choices of a shard.

    Raises:
        WriteError: they could not be written; the old ones are untouched.
    """
    text = json.dumps(choices, allow_nan=False, indent=1, sort_keys=True)
    replace_file(choices_path(folder, shard), text.encode("ascii") + b"\n")

"""What an audit of a run found, kept beside its records."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.hardware.files import read_file
from spsbench.settings.records import SCHEMA
from spsbench.store.atomic import replace_file

NAME = "audit.json"
PARTS = ("name", "settings", "verdict", "line", "controls")  # that each audit has


def write_audits(folder: Path, audits: Sequence[dict[str, Any]]) -> Path:
    """Keep audits, as `sps verify --json` tells them; those kept before are replaced.

    Raises:
        WriteError: the file could not be written.
    """
    path = folder / NAME
    content = json.dumps({"schema": SCHEMA, "audits": list(audits)}, indent=1, allow_nan=False)
    replace_file(path, f"{content}\n".encode("ascii"))
    return path


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """The audits kept with a run; none where none were kept.

    Raises:
        DataError: a file that is no such audit.
    """
    path = folder / NAME
    if not path.is_file():
        return []
    try:
        values = json.loads(read_file(path))
        audits = values["audits"]
        known = values["schema"] in range(1, SCHEMA + 1)
        sound = known and all(part in audit for audit in audits for part in PARTS)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise DataError(
            f"an audit that cannot be read ({path}): expected what sps verify run --keep writes. "
            "Delete it, and audit again"
        )
    return list(audits)

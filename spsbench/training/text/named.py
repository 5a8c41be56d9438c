"""A task among the files that a user names."""

from pathlib import Path
from typing import Any

from spsbench.errors import MissingError, UsageError
from spsbench.plugins import make
from spsbench.spec import Spec

OF_FILES = (".jsonl", ".json", ".gz", ".parquet")


def task_named(name: str, flag: str, wanted: str) -> Any:
    """The task of this name, where there is no file of it.

    Args:
        flag: that named it.
        wanted: what a file would have held, for the message.

    Raises:
        MissingError: it is called as a file is.
        UsageError: no such task.
    """
    path = Path(name).expanduser()
    if path.suffix in OF_FILES:
        raise MissingError(f"no such file ({path}): expected {wanted}. Check {flag}")
    try:
        return make("tasks", Spec.parse(name))
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error

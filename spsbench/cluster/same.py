"""Whether a worker is fit for a run: field by field."""

import socket
from collections.abc import Mapping
from typing import Any

from spsbench.errors import MismatchError
from spsbench.store.manifest import differences


def check_same(here: Mapping[str, Any], there: Mapping[str, Any], place: str) -> None:
    """Refuse a worker whose work would be of something else.

    Raises:
        MismatchError: names every field that differs.
    """
    if found := differences(here, there):
        raise MismatchError.of(
            f"another environment (worker on {place}): expected what the driver has. Install the "
            "same there, and put the same models in its cache",
            found,
            " (driver, there)",
        )


def place() -> str:
    """This machine's name, for messages; no record has it."""
    return socket.gethostname()

"""Whether a worker is fit for a run: field by field."""

import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from spsbench.distributed.protocol import Hello
from spsbench.errors import MismatchError
from spsbench.store.manifest import differences


class Same:
    """What a worker must be as; had when the first one joins, since files are hashed for it.

    Args:
        here: the driver's environment.
    """

    def __init__(self, here: Callable[[], Mapping[str, Any]]) -> None:
        self._here = cache(here)

    def check(self, hello: Hello) -> None:
        """Refuse another one.

        Raises:
            MismatchError: names every field that differs.
        """
        check_same(self._here(), hello.environment, hello.place)


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

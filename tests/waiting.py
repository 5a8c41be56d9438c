"""Waits for what another process or thread does; the only clock that tests look at."""

import time
from collections.abc import Callable

PATIENCE = 120  # seconds


def wait_until(happened: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Return whether `happened` became true in time; it is asked a hundred times a second."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True

"""Ctrl-C while libraries are imported and models loaded."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spsbench.errors import Exit


@contextmanager
def at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without an exception, which an import may catch and forget.

    Only for work that leaves nothing half done: no clean-up is run.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # started with Ctrl-C switched off, as by nohup
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: leave())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def leave() -> None:
    """End now, as an interrupt does elsewhere."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(Exit.INTERRUPTED)

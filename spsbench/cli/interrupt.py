"""Handlers of Ctrl-C while libraries are imported and models loaded."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt once the handler that is set has noted it.

    Only for work that keeps what is done when it is broken off.
    """
    note = signal.getsignal(signal.SIGINT)
    if callable(note):

        def broken_off(number: int, frame: FrameType | None) -> None:
            note(number, frame)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, broken_off)
    try:
        yield
    finally:
        if callable(note):
            signal.signal(signal.SIGINT, note)


def leave() -> None:
    """End the process now, with the exit code of an interrupt."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(Exit.INTERRUPTED)

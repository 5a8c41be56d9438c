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

    Only for work without partial results: no clean-up runs.
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
    """Let Ctrl-C raise KeyboardInterrupt after the current handler.

    Only for work that keeps its partial results after an interrupt.
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

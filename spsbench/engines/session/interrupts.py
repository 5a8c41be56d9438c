"""Ctrl-C while torch's interpreter runs Python: it is held, and handled right afterwards."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """Let SIGINT reach its handler only when the block is over.

    Kernels in Python are run by the interpreter of a replay, where the handler would run as well;
    what it raises there comes out as a RuntimeError about TorchScript, and not as the interrupt
    that it is. Nothing to do where Python's handlers do not run: outside the main thread, and where
    SIGINT is ignored or not Python's.
    """
    before = signal.getsignal(signal.SIGINT)
    aside = threading.current_thread() is not threading.main_thread()
    if aside or before in (signal.SIG_IGN, signal.SIG_DFL, None):
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # else another handler has set a new one
            signal.signal(signal.SIGINT, before)
        for number in came:
            signal.raise_signal(number)

"""Ctrl-C once: finish the sample in hand, or end within a given time. Ctrl-C twice: now."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDS_WITHIN = 1.0  # seconds that work which survives a kill has to end by itself


class Interrupt:
    """Whether the user, or the system, wants this process to end."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that came

    @property
    def requested(self) -> bool:
        """Whether to end after the sample in hand."""
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code of that signal: 130, 143 or 129; 0 when none came."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def graceful(
    within: float | None = None, farewell: Callable[[], str] = lambda: "interrupted"
) -> Iterator[Interrupt]:
    """Note the first SIGINT, SIGTERM or SIGHUP; let the second end the process at once.

    The second SIGINT raises KeyboardInterrupt, the others kill. A signal that was ignored stays
    so (`nohup`), and outside the main thread, where Python allows no handlers, none is noted.

    Args:
        within: seconds after the first signal in which the work may end by itself. Then the process
            ends as if it were killed, with a line on stderr: only for work that survives a kill.
            None: the work takes its time.
        farewell: makes that line.
    """
    interrupt = Interrupt()
    late: threading.Timer | None = None

    def leave() -> None:
        cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides it
        os.write(sys.stderr.fileno(), f"{cursor}{farewell()}\n".encode())
        os._exit(interrupt.code)

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal late
        interrupt.signal = number
        if within is not None:
            late = threading.Timer(within, leave)
            late.daemon = True
            late.start()
        for each in before:
            once_more = signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL
            signal.signal(each, once_more)

    # None is a handler that was not set from Python: it could not be put back
    before = {
        each: handler
        for each in SIGNALS
        if (handler := signal.getsignal(each)) not in (signal.SIG_IGN, None)
    }
    try:
        for each in before:
            signal.signal(each, note)
        yield interrupt
    finally:
        if late is not None:
            late.cancel()
        for each, handler in before.items():
            signal.signal(each, handler)

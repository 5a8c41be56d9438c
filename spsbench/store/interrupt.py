"""Signals: the first Ctrl-C ends after the current sample or a time limit, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDS_WITHIN = 1.0  # seconds for work that survives a kill to end by itself


class Interrupt:
    """A request of the user, or the system, to end this process."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first signal

    @property
    def requested(self) -> bool:
        """Return whether to end after the current sample."""
        return self.signal is not None

    @property
    def code(self) -> int:
        """Return the exit code of the signal: 130, 143 or 129; 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def graceful(
    within: float | None = None, farewell: Callable[[], str] = lambda: "interrupted"
) -> Iterator[Interrupt]:
    """Record the first SIGINT, SIGTERM or SIGHUP; let the second end the process at once.

    The second SIGINT raises KeyboardInterrupt, the others kill. Ignored signals stay ignored
    (`nohup`), and outside the main thread, where Python allows no handlers, no signal is recorded.

    Args:
            within: seconds after the first signal for the work to end by itself. Then the process
            ends as if killed, with a line on stderr: only for work that survives a kill. None: no
            limit.
        farewell: makes that line.
    """
    interrupt = Interrupt()
    late: threading.Timer | None = None

    def leave() -> None:
        cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
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
        for caught in before:
            once_more = signal.default_int_handler if caught == signal.SIGINT else signal.SIG_DFL
            signal.signal(caught, once_more)

    # None is a handler set outside Python, which cannot be restored
    before = {
        number: handler
        for number in SIGNALS
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    try:
        for number in before:
            signal.signal(number, note)
        yield interrupt
    finally:
        if late is not None:
            late.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)

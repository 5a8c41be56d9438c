"""Signals: a first Ctrl-C ends work in its own time, a second one at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from spsbench.errors import Exit

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
    within: float | None = None,
    farewell: Callable[[], str] = lambda: "interrupted",
    raises: Collection[int] = (),
) -> Iterator[Interrupt]:
    """Record the first SIGINT, SIGTERM or SIGHUP; let the second end the process at once.

    The second SIGINT raises KeyboardInterrupt, the others kill. Ignored signals stay ignored
    (`nohup`), and outside the main thread, where Python allows no handlers, no signal is recorded.

    Args:
        within: seconds after the first signal for the work to end by itself. Then the process ends
            as if killed, with a line on stderr: only for work that survives a kill. None: no limit.
        farewell: makes that line.
        raises: signals that raise KeyboardInterrupt as well, the first time: only for work that
            keeps its partial results then.
    """
    interrupt = Interrupt()
    late: threading.Timer | None = None
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def end_late() -> None:
        cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
        leave(f"{cursor}{farewell()}", interrupt.code)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal late
        interrupt.signal = number
        if within is not None:
            late = threading.Timer(within, end_late)
            late.daemon = True
            late.start()
        for caught in before:
            once_more = signal.default_int_handler if caught == signal.SIGINT else signal.SIG_DFL
            signal.signal(caught, once_more)
        if number in raises:
            raise KeyboardInterrupt

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
def held() -> Iterator[None]:
    """Let SIGINT reach its handler only when the block is over.

    A step of training and an exchange between ranks end whole: what an interrupt tears there would
    be seen by the next one. The block runs as it is where Python's handlers do not run: outside the
    main thread, and where SIGINT is ignored or not Python's.
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


def leave(line: str = "interrupted", code: int = Exit.INTERRUPTED) -> None:
    """End the process now, with a line on standard error."""
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
    os._exit(code)

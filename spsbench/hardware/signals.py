"""Signals: a first Ctrl-C ends work in its own time, a second one at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
    farewell: Callable[[], str] | None = None, raises: bool = False
) -> Iterator[Interrupt]:
    """Yield a record of the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once.

    The second SIGINT raises KeyboardInterrupt, the others kill. Ignored signals stay ignored
    (`nohup`), and outside the main thread, where Python allows no handlers, none is recorded. A
    KeyboardInterrupt of the block is recorded and passes. Former handlers return at the end.

    `farewell` makes the line with which the process exits at once, with the signal's code, where
    the block has not ended `ENDS_WITHIN` after the first signal: only for work that survives a
    kill. With `raises` the first signal raises KeyboardInterrupt as well: only for work that keeps
    its partial results then.
    """
    interrupt = Interrupt()

    def end_late() -> None:
        cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
        leave(f"{cursor}{farewell and farewell()}", interrupt.code)

    late = threading.Timer(ENDS_WITHIN, end_late)
    late.daemon = True
    aside = threading.current_thread() is not threading.main_thread()

    def note(number: int, frame: FrameType | None) -> None:
        """Record signal `number`, time a farewell, restore defaults; interrupt if `raises`."""
        interrupt.signal = number
        if farewell is not None:
            late.start()
        for caught in before:
            once_more = signal.default_int_handler if caught == signal.SIGINT else signal.SIG_DFL
            if signal.getsignal(caught) is note:
                signal.signal(caught, once_more)
        if raises and signal.SIGINT in before:  # whose handler may be asyncio's, see `cancelling`
            signal.raise_signal(signal.SIGINT)
        elif raises:
            raise KeyboardInterrupt

    # None is a handler set outside Python, which cannot be restored
    before = {
        number: handler
        for number in (() if aside else SIGNALS)
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    try:
        for number in before:
            signal.signal(number, note)
        yield interrupt
    except KeyboardInterrupt:
        interrupt.signal = interrupt.signal or signal.SIGINT
        raise
    finally:
        late.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let `handler` take SIGINT in this block, unless it is ignored or this is no main thread."""
    before = signal.getsignal(signal.SIGINT)
    aside = threading.current_thread() is not threading.main_thread()
    if aside or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def cancelling() -> AbstractContextManager[None]:
    """Let an interrupt cancel the tasks of `asyncio.run` in this block, at their next `await`.

    asyncio does so where the handler of SIGINT is Python's own; another one would raise an
    exception amid its code, which may lose it.
    """
    return handling(signal.default_int_handler)


def at_once() -> AbstractContextManager[None]:
    """Let Ctrl-C end the process without an exception, which an import may catch and forget.

    Only for work without partial results: no clean-up runs.
    """
    return handling(lambda number, frame: leave())


def leave(line: str = "interrupted", code: int = Exit.INTERRUPTED) -> None:
    """Write `line` to standard error and end the process now, with exit `code` and no clean-up."""
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
    os._exit(code)

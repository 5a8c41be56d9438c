"""Progress of a run: a bar on a terminal, elsewhere one line per minute."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from spsbench.cli.output.terminal import is_terminal, say
from spsbench.hardware.files import clock

EVERY = 60.0  # seconds between two lines without a terminal


class Counted(Protocol):
    """Protocol of a progress value: done, total, and a description."""

    total: int
    done: int

    def __str__(self) -> str: ...


class Heartbeat:
    """Printer of a line at regular intervals from a thread of its own."""

    def __init__(self, line: Callable[[], str], every: float = EVERY) -> None:
        self._line, self._every, self._over = line, every, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            say(self._line())


@contextmanager
def alive(doing: str, every: float = EVERY) -> Iterator[None]:
    """Print a line per minute while the block runs, unless stderr is a terminal."""
    if is_terminal(sys.stderr):
        yield
        return
    began = time.monotonic()
    with Heartbeat(lambda: f"{doing}, for {clock(time.monotonic() - began)} so far", every):
        yield


class Progress:
    """Progress without a terminal; `progress` prints its lines."""

    def __init__(self, pace: Counted) -> None:
        self._pace = pace

    def show(self) -> None:
        """Do nothing; a line is printed once a minute, however long one sample takes."""


class Bar(Progress):
    """Progress bar on a terminal."""

    def __init__(self, pace: Counted) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Drawn

        super().__init__(pace)
        columns = BarColumn(bar_width=30), TextColumn("{task.fields[pace]}", markup=False)
        self.drawn = Drawn(*columns, console=Console(stderr=True), refresh_per_second=4)
        self._task = self.drawn.add_task("", total=pace.total, pace=str(pace))

    def show(self) -> None:
        """Move the bar."""
        pace = self._pace
        self.drawn.update(self._task, completed=pace.done, total=pace.total, pace=str(pace))


@contextmanager
def progress(pace: Counted, every: float = EVERY) -> Iterator[Progress]:
    """Show a bar, or print a line at regular intervals, while the block runs."""
    if not is_terminal(sys.stderr):
        with Heartbeat(lambda: str(pace), every):
            yield Progress(pace)
        return
    bar = Bar(pace)
    with bar.drawn:
        yield bar


@contextmanager
def deferred_progress() -> Iterator[Callable[[Counted], None]]:
    """Yield a function that shows the progress passed to it, from the first call on."""
    with ExitStack() as stack:
        bars: list[Progress] = []

        def watch(pace: Counted) -> None:
            if not bars:
                bars.append(stack.enter_context(progress(pace)))
            bars[0].show()

        yield watch

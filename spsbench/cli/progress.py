"""How far a run is: a bar on a terminal, elsewhere one line a minute."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from spsbench.cli.terminal import is_terminal, say
from spsbench.hardware.files import clock

EVERY = 60.0  # seconds between two lines where there is no terminal


class Counted(Protocol):
    """What a bar shows: how much of how much, and in words."""

    total: int
    done: int

    def __str__(self) -> str: ...


class Heart:
    """Says a line every so many seconds from a thread of its own, whatever the work waits for."""

    def __init__(self, line: Callable[[], str], every: float = EVERY) -> None:
        self._line, self._every, self._over = line, every, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heart":
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
    """While it lasts, where there is no terminal: a line a minute that it still goes on."""
    if is_terminal(sys.stderr):
        yield
        return
    began = time.monotonic()
    with Heart(lambda: f"{doing}, for {clock(time.monotonic() - began)} so far", every):
        yield


class Progress:
    """Shows a pace."""

    def __init__(self, pace: Counted) -> None:
        self._pace = pace

    def show(self) -> None:
        """Without a terminal the pace is said once a minute, however long one sample takes."""


class Bar(Progress):
    """The same as a bar that is drawn again and again."""

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
        self.drawn.update(self._task, completed=self._pace.done, pace=str(self._pace))


@contextmanager
def progress(pace: Counted, every: float = EVERY) -> Iterator[Progress]:
    """The bar, or a line every so many seconds, while a run lasts."""
    if not is_terminal(sys.stderr):
        with Heart(lambda: str(pace), every):
            yield Progress(pace)
        return
    bar = Bar(pace)
    with bar.drawn:
        yield bar


@contextmanager
def shown() -> Iterator[Callable[[Counted], None]]:
    """The same for a pace that is yet to come: what to tell it to."""
    with ExitStack() as stack:
        bars: list[Progress] = []

        def watch(pace: Counted) -> None:
            if not bars:
                bars.append(stack.enter_context(progress(pace)))
            bars[0].show()

        yield watch

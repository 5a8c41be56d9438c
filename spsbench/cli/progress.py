"""How far a run is: a bar on a terminal, elsewhere one line a minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from spsbench.cli.notes import say
from spsbench.cli.safe import is_terminal

EVERY = 60.0  # seconds between two lines where there is no terminal


class Counted(Protocol):
    """What a bar shows: how much of how much, and in words."""

    total: int
    done: int

    def __str__(self) -> str: ...


class Progress:
    """Shows a pace."""

    def __init__(self, pace: Counted, every: float = EVERY) -> None:
        self._pace, self._last, self._every = pace, time.monotonic(), every

    def show(self) -> None:
        """Say where the run stands, if the last time was long enough ago."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            say(str(self._pace))


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
        yield Progress(pace, every)
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

"""How far a run is: a bar on a terminal, elsewhere one line a minute."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from spsbench.cli.notes import say
from spsbench.cli.safe import is_terminal
from spsbench.results import Cell, Record

EVERY = 60.0  # seconds between two lines where there is no terminal


class Counted(Protocol):
    """What a bar shows: how much of how much, and in words."""

    total: int
    done: int

    def __str__(self) -> str: ...


class Pace:
    """Counts what has been made: tokens a second, tau and speed-up as they stand."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._began = time.monotonic()
        self._tokens = self._drafted_rounds = self._drafted_tokens = 0
        self._spent = {True: 0.0, False: 0.0}  # seconds of rounds, by whether it is ArS
        self._made = {True: 0, False: 0}

    def add(self, cell: Cell, record: Record) -> None:
        """Count one record."""
        self.done += 1
        self.failed += record.error is not None
        tokens = len(record.tokens)
        plain = cell.k == 0
        self._tokens += tokens
        self._made[plain] += tokens
        self._spent[plain] += sum(r.seconds for r in record.rounds)
        if not plain:
            self._drafted_rounds += len(record.rounds)
            self._drafted_tokens += tokens

    def __str__(self) -> str:
        """`312/800, 410 tokens/s, tau 3.1, speed-up 1.9x, 0:04:10 to go`."""
        passed = max(time.monotonic() - self._began, 1e-9)
        parts = [f"{self.done}/{self.total}", f"{self._tokens / passed:.0f} tokens/s"]
        if self._drafted_rounds:
            parts.append(f"tau {self._drafted_tokens / self._drafted_rounds:.2f}")
        if self._made[True] and self._made[False] and self._spent[False]:
            per_token = [self._spent[plain] / self._made[plain] for plain in (True, False)]
            parts.append(f"speed-up {per_token[0] / per_token[1]:.2f}x")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.done:
            parts.append(f"{clock(passed / self.done * (self.total - self.done))} to go")
        return ", ".join(parts)


class Progress:
    """Shows a pace."""

    def __init__(self, pace: Counted) -> None:
        self._pace, self._last = pace, time.monotonic()

    def show(self) -> None:
        """Say where the run stands, if the last time was long enough ago."""
        if time.monotonic() - self._last >= EVERY:
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
def progress(pace: Counted) -> Iterator[Progress]:
    """The bar, or the lines, while a run lasts."""
    if not is_terminal(sys.stderr):
        yield Progress(pace)
        return
    bar = Bar(pace)
    with bar.drawn:
        yield bar


def clock(seconds: float) -> str:
    """`1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"

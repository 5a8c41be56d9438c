"""Progress of a run: a bar on a terminal, elsewhere one line per minute."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from spsbench.cli.terminal import is_terminal, say
from spsbench.hardware.files import clock

EVERY = 60.0  # seconds between two lines without a terminal


class ProgressValue(Protocol):
    """Protocol of a progress value: done, total, and a description."""

    total: int
    done: int

    def __str__(self) -> str: ...


@contextmanager
def heartbeat(line: Callable[[], str], every: float = EVERY) -> Iterator[None]:
    """Print `line()` on stderr each `every` seconds, from a thread, while the block runs."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            say(line())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def alive(doing: str, every: float = EVERY) -> Iterator[None]:
    """Print `doing` and for how long each `every` seconds in this block, but on no terminal."""
    if is_terminal(sys.stderr):
        yield
        return
    began = time.monotonic()
    with heartbeat(lambda: f"{doing}, for {clock(time.monotonic() - began)} so far", every):
        yield


@contextmanager
def progress(pace: ProgressValue, every: float = EVERY) -> Iterator[Callable[[], None]]:
    """Yield a function that updates a bar of `pace` on a terminal.

    Elsewhere the function does nothing: a thread prints `pace` each `every` seconds.
    """
    if not is_terminal(sys.stderr):
        with heartbeat(lambda: str(pace), every):
            yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=30), TextColumn("{task.fields[pace]}", markup=False)
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("", total=pace.total, pace=str(pace))
        yield lambda: bar.update(task, completed=pace.done, total=pace.total, pace=str(pace))


@contextmanager
def deferred_progress() -> Iterator[Callable[[ProgressValue], None]]:
    """Yield a function: its first call shows the given progress, later ones update it."""
    with ExitStack() as stack:
        moves: list[Callable[[], None]] = []

        def watch(pace: ProgressValue) -> None:
            if not moves:
                moves.append(stack.enter_context(progress(pace)))
            moves[0]()

        yield watch

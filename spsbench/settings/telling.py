"""How a user is told what is worth knowing while something is done: a line each.

What may take long says so by `working`, wherever it is done: compiling is far below the code that
was given a `Say`. `listening` sets who is told, for the whole process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

Say = Callable[[str], None]
"""Tells a line."""

PATIENCE = 2.0  # seconds of silence
LIBRARIES = "importing torch and transformers"


def quiet(line: Any) -> None:
    """Tells nobody."""


_listeners: list[Say] = [quiet]


@contextmanager
def listening(say: Say) -> Iterator[None]:
    """Tell `say` of what takes long in this block; `quiet` leaves the one that is told already."""
    _listeners.append(_listeners[-1] if say is quiet else say)
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say `what` is being done once this block has taken `PATIENCE` seconds."""
    say = _listeners[-1]
    if say is quiet:
        yield
        return
    timer = Timer(PATIENCE, say, (f"{what} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def once(say: Say) -> Say:
    """`say` without the lines that it was told before."""
    said: set[str] = set()

    def told(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return told

"""Messages for the user: each module logs them to `logging.getLogger(__name__)`, at level INFO.

Programs receive them by the usual configuration of `logging`; the command line, and `say=` of the
library, by `lines_to`.
"""

import logging
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from threading import Timer
from typing import Any, TypeVar

PATIENCE = 2.0  # seconds until a step that takes long is announced
LIBRARIES = "importing torch and transformers"

Result = TypeVar("Result")

Say = Callable[[str], None]
"""A function that receives a line."""

log = logging.getLogger(__package__)


HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidi, zero width), surrogates, separators."""


def visible(text: str) -> str:
    r"""Return one line with all invisible characters escaped, also \n and \t."""
    return "".join(map(_visible, text))


@cache
def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in HIDDEN
    return character.encode("unicode_escape").decode("ascii") if hidden else character


def ignore(value: Any) -> None:
    """Do nothing with `value`: the default of callbacks."""


class Listener(logging.Handler):
    """Passes each different line to a function once."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self.say = say
        self._heard: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the line of `record` on, unless it was passed on before."""
        line = record.getMessage()
        if line not in self._heard:
            self._heard.add(line)
            self.say(line)


@contextmanager
def lines_to(say: Say | None) -> Iterator[None]:
    """Pass each different line that any thread logs in this block to `say`, once.

    Nothing is changed if `say` is None, or receives the lines already. A level that hides them is
    lowered for the block, and handlers of parent loggers then do not get them.
    """
    if say is None or any(getattr(handler, "say", None) == say for handler in log.handlers):
        yield
        return
    listener, before = Listener(say), (log.level, log.propagate)
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
        log.propagate = False
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.setLevel(before[0])
        log.propagate = before[1]


def takes_say(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return `function` with a further keyword `say`, which receives the lines of its call."""

    @wraps(function)
    def call(*args: Any, say: Say | None = None, **options: Any) -> Result:
        with lines_to(say):
            return function(*args, **options)

    return call


@contextmanager
def no_lines() -> Iterator[None]:
    """Log nothing below CRITICAL in this block, whose lines are known or of no interest."""
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def announce_if_slow(step: str) -> Iterator[None]:
    """Log `step ...`, from another thread, once this block has taken `PATIENCE` seconds."""
    if not log.isEnabledFor(logging.INFO):
        yield
        return
    timer = Timer(PATIENCE, log.info, (f"{step} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()

"""How a user is told what is worth knowing while something is done: a line each."""

from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]
"""Tells a line."""


def quiet(line: Any) -> None:
    """Tells nobody."""


def once(say: Say) -> Say:
    """`say` without the lines that it was told before."""
    said: set[str] = set()

    def told(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return told

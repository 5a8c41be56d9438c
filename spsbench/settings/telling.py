"""How a user is told what is worth knowing while something is done: a line each."""

from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]
"""Tells a line."""


def quiet(line: Any) -> None:
    """Tells nobody."""

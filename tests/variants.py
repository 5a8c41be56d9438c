"""Variants of one test: the first few in the fast suite, all in `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters, those after the first `count` marked slow."""
    return [
        value if number < count else pytest.param(*as_arguments(value), marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]


def as_arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)

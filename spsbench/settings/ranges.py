"""Ranges of whole numbers as a user writes them: `4`, `1..8`, `1..9..2`, `0,1..3`."""

import re
from collections import Counter
from collections.abc import Iterator

MOST = 10_000  # numbers that one text may name
TERM = re.compile(r"(\d+)(?:\.\.(\d+)(?:\.\.(\d+))?)?")


def parse_range(text: str, *, low: int, high: int) -> list[int]:
    """The numbers of `text` in its order, each once; both ends of `a..b` belong to it.

    `a..b..s` takes every s-th. Terms are parted by commas.

    Raises:
        ValueError: something else, a range that runs backwards, a number not in low..high, or
            more than `MOST` numbers.
    """
    return list(dict.fromkeys(_numbers(text, low, high)))


def repeated(text: str, *, low: int, high: int) -> list[int]:
    """The numbers that `text` names more than once. Raises like `parse_range`."""
    return [number for number, times in Counter(_numbers(text, low, high)).items() if times > 1]


def _numbers(text: str, low: int, high: int) -> Iterator[int]:
    left = MOST
    for term in text.replace(" ", "").split(","):
        match = TERM.fullmatch(term)
        if match is None:
            raise ValueError(
                f"{text!r}: expected numbers and ranges such as 4 or 1..8, got {term!r}"
            )
        first = int(match[1])
        last = int(match[2] or first)
        step = int(match[3] or 1)
        if last < first or step == 0:
            raise ValueError(f"{text!r}: {term} is empty: expected first <= last and a step >= 1")
        if first < low or last > high:
            raise ValueError(f"{text!r}: {term} is outside {low}..{high}")
        named = (last - first) // step + 1
        if named > left:
            raise ValueError(f"{text!r} names {named:,} numbers: expected at most {MOST:,}")
        left -= named
        yield from range(first, last + 1, step)

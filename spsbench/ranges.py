"""Ranges of whole numbers as a user writes them: `4`, `1..8`, `1..9..2`, `0,1..3`."""

import re

TERM = re.compile(r"(\d+)(?:\.\.(\d+)(?:\.\.(\d+))?)?")


def parse_range(text: str, *, low: int, high: int) -> list[int]:
    """The numbers of `text` in its order, each once; both ends of `a..b` belong to it.

    `a..b..s` takes every s-th. Terms are parted by commas.

    Raises:
        ValueError: something else, a range that runs backwards, or a number not in low..high.
    """
    numbers: list[int] = []
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
        numbers += range(first, last + 1, step)
    return list(dict.fromkeys(numbers))

"""Where sentences end, and the longest beginning of a text that ends with one and still fits."""

import re
from bisect import bisect_left
from collections.abc import Callable

_MARK = re.compile(r"""[.!?]+["'”’)\]]*\s+""")
_SHORT = frozenset(
    (
        *("Mr", "Mrs", "Ms", "Dr", "Prof", "Rev", "Sir", "St", "Lt", "Col", "Gen", "Sgt", "Capt"),
        *("Gov", "Sen", "Rep", "No", "vs", "etc"),
    )
)


def sentence_ends(text: str) -> list[int]:
    """The offset behind each sentence of `text`, the end of the text included.

    A full stop after an initial or an abbreviation ends no sentence, nor does one before a word in
    lower case.
    """
    ends = [
        mark.start() + len(mark.group().rstrip())
        for mark in _MARK.finditer(text)
        if not _is_short(text, mark) and not text[mark.end() : mark.end() + 1].islower()
    ]
    whole = len(text.rstrip())
    return [end for end in ends if end < whole] + [whole]


def shortened(text: str, fits: Callable[[str], bool]) -> str | None:
    """The most whole sentences from the beginning of `text` that fit, or None if not even one does.

    What is returned was asked of `fits`, even if `fits` is not monotone in the length.
    """
    ends = sentence_ends(text)
    count = bisect_left(ends, True, key=lambda end: not fits(text[:end]))
    return text[: ends[count - 1]] if count else None


def _is_short(text: str, mark: re.Match[str]) -> bool:
    """Whether the word before the mark is an initial or an abbreviation."""
    if not mark.group().startswith("."):
        return False
    before = text[max(0, mark.start() - 8) : mark.start()]
    word = re.split(r"[^\w]", before)[-1]
    return word in _SHORT or (len(word) == 1 and word.isupper())

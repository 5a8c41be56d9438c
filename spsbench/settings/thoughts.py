"""Marks by which models set their thoughts apart from their answers."""

import re

from spsbench.tables import read_table

TABLE = read_table(__file__, "thoughts.toml")
MARKS, WORDS = ([(row["begin"], row["end"]) for row in TABLE[name]] for name in ("marks", "words"))
_BEGINS, _ENDS = ("|".join(marks) for marks in zip(*MARKS, *WORDS, strict=True))
_THOUGHT = re.compile(rf"\s*+(?:{_BEGINS})")
_THOUGHT_AT_END = re.compile(rf"(?:{_BEGINS})\s*+$")
_END = re.compile("|".join(end for _, end in MARKS))
_END_BEGUN = re.compile(_ENDS)


def is_mark(text: str) -> bool:
    """Return whether a text is the mark of a beginning or an end, and nothing else."""
    return re.fullmatch(f"{_BEGINS}|{_ENDS}", text) is not None


def without_thinking(answer: str) -> str:
    """Return what follows the last end of a thought; all of an answer that has none.

    An answer that begins to think and does not end says nothing: "". An end alone counts too, if it
    is of `MARKS`, since templates may put the beginning in the prompt.
    """
    has_begun = _THOUGHT.match(answer) is not None
    if ends := list((_END_BEGUN if has_begun else _END).finditer(answer)):
        return answer[ends[-1].end() :]
    return "" if has_begun else answer


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends with the beginning of a thought, as some templates do."""
    return _THOUGHT_AT_END.search(prompt) is not None

"""Answers of instruct models: what follows the thinking, and the blocks of code in it."""

import re
from typing import NamedTuple

# <think>, <thinking>, <seed:think> and [THINK], as models name their thoughts.
_THOUGHT = re.compile(r"\s*(<(seed:)?think(ing)?>|\[THINK\])")
_THOUGHT_AT_END = re.compile(_THOUGHT.pattern + r"\s*$")
_THOUGHT_END = re.compile(r"</(seed:)?think(ing)?>|\[/THINK\]")
# A line such as ```python, perhaps after the mark of a list.
_FENCE = re.compile(
    r"(?P<margin>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]*)?)(?P<run>`{3,}|~{3,})(?P<info>[^`]*)"
)
_RUN = re.compile(r"`{3,}|~{3,}")
_TAB = 4  # columns
_DEEPER = 3  # columns that a closing fence may stand deeper than its container


class Parts(NamedTuple):
    """An answer, split into its blocks of code and the text around them."""

    blocks: list[str]
    text: str  # with a fence in the place of each block


def without_thinking(answer: str) -> str:
    """Return what follows the last end of a thought: templates may put its beginning in the prompt.

    An answer that begins to think and does not end says nothing.
    """
    if ends := list(_THOUGHT_END.finditer(answer)):
        return answer[ends[-1].end() :]
    return "" if _THOUGHT.match(answer) else answer


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends with the beginning of a thought, as some templates do."""
    return _THOUGHT_AT_END.search(prompt) is not None


def parts_of(answer: str) -> Parts:
    """Split an answer at its fences: as CommonMark does, and more leniently where models write so.

    A closing fence has at least the run of the opening one and stands at most three columns deeper
    than its container, so a fence in a docstring closes nothing; it may stand at the end of a line
    of code. A fence that names a language opens a block within the block. A block that nothing
    closes ends at the first such fence, or with the answer.
    """
    lines = answer.split("\n")
    blocks: list[str] = []
    text: list[str] = []
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at].rstrip())
        if fence is None:
            text.append(lines[at])
            at += 1
        else:
            block, at = _block(lines, at + 1, fence["run"], _columns(fence["margin"]))
            blocks.append(block)
            text.append("```")
    return Parts(blocks, "\n".join(text))


def _block(lines: list[str], start: int, run: str, column: int) -> tuple[str, int]:
    """Return the block whose code begins at line `start`, and the line after its closing fence."""
    depth, inner = 1, len(lines)
    for at in range(start, len(lines)):
        line = lines[at].rstrip()
        fence = _FENCE.fullmatch(line)
        if fence is None or not fence["run"].startswith(run):
            code = _closed_at_end(line, run)
            if code is not None and not _is_deeper(lines[at + 1 : at + 2], column):
                return "\n".join([*lines[start:at], code, ""]), at + 1
        elif _columns(fence["margin"]) <= column + _DEEPER:
            if fence["info"].strip():
                depth, inner = depth + 1, min(inner, at)
            elif not fence["margin"].strip():
                depth -= 1
            if depth == 0:
                return "\n".join([*lines[start:at], ""]), at + 1
    return "\n".join(lines[start:inner]), inner


def _closed_at_end(line: str, run: str) -> str | None:
    """Return a line of code without the fence at its end; None: there is none."""
    runs = list(_RUN.finditer(line))
    closes = len(runs) % 2 == 1 and runs[-1].end() == len(line) and runs[-1][0].startswith(run)
    return line[: runs[-1].start()] if closes else None


def _is_deeper(following: list[str], column: int) -> bool:
    """Return whether code goes on in the line that follows, as it does in a docstring."""
    return any(
        line.strip() and _columns(line[: -len(line.lstrip())]) > column for line in following
    )


def _columns(margin: str) -> int:
    return len(margin.expandtabs(_TAB))

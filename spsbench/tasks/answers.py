"""Answers of instruct models: what follows the thinking, and the blocks of code in it."""

import re
from typing import NamedTuple

# <think>, <thinking>, <seed:think> and [THINK], as models name their thoughts.
_THOUGHT = re.compile(r"\s*(<(seed:)?think(ing)?>|\[THINK\])")
_THOUGHT_AT_END = re.compile(_THOUGHT.pattern + r"\s*$")
_THOUGHT_END = re.compile(r"</(seed:)?think(ing)?>|\[/THINK\]")


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
    """Split an answer at its fences, as CommonMark does: the end of the answer closes one too."""
    from markdown_it import MarkdownIt

    lines = answer.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text: list[str | None] = [*lines]
    blocks = []
    for token in MarkdownIt("commonmark").disable("inline").parse("\n".join(lines)):
        if token.type == "fence" and token.map is not None:
            first, end = token.map
            text[first:end] = ["```", *[None] * (end - first - 1)]
            blocks.append(token.content)
    return Parts(blocks, "\n".join(line for line in text if line is not None))

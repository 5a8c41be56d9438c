"""Answers of instruct models: what a task asks them to mark, and the blocks of code in them."""

from typing import NamedTuple

UNMARKED = "unmarked"
"""A score that no table shows: 1 for an answer without what its task asks it to mark."""


class Parts(NamedTuple):
    """An answer, split into its blocks of code and the text around them."""

    blocks: list[str]
    text: str  # with a fence in the place of each block


def split_answer(answer: str) -> Parts:
    """Return an answer's fenced blocks, by CommonMark, and its text with ``` in their places."""
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

"""What people type: heads and openings of functions, files and articles, none of them held out."""

import ast
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from nano import functions, news, stdlib
from spsbench.tasks.articles import layout

WORDS = (1, 8)  # of an article's opening
LINES = (1, 4)  # of a file's opening
BODY = (2, 12)  # lines of a function or class, where it is cut


def openings(count: int, *, bodies: int = 0, examples: int = 0) -> list[str]:
    """Return different openings in a shuffled order of seed 0: up to `count` of each kind.

    Args:
        count: functions with docstrings, articles, their first words, openings of files; twice as
            many heads of functions and classes.
        bodies: functions and classes of the library that are cut after some lines.
        examples: articles after another one with its summary.
    """
    rng = random.Random("heads/0")
    texts = [item.prompt for item in islice(functions.items(1, "train"), count)]
    items = list(islice(news.items(1, "train"), 2 * (count + examples)))
    texts += [layout([], item.document) for item in items[:count]]
    first, pairs = items[count : 2 * count], items[2 * count :]
    texts += [" ".join(item.document.split()[: rng.randint(*WORDS)]) for item in first]
    modules = [module.text for module in stdlib.load(pinned=False) if module.split == "train"]
    texts += ["\n".join(text.splitlines()[: rng.randint(*LINES)]) for text in modules][:count]
    blocks = sorted({block for text in modules for block in _blocks(text)})
    heads = sorted({head for block in blocks if (head := block.split("\n")[0]).endswith(":")})
    texts += rng.sample(heads, 2 * count)
    cut = rng.sample(blocks, bodies)
    texts += ["\n".join(block.split("\n")[: rng.randint(*BODY)]) + "\n" for block in cut]
    texts += [layout([a], b.document) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    rng.shuffle(texts)
    return [text for text in dict.fromkeys(texts) if text.strip()]


def write_prompts(file: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write a JSON line a row, numbered."""
    lines = (json.dumps({"id": str(number), **row}) + "\n" for number, row in enumerate(rows))
    file.write_text("".join(lines), encoding="utf-8")


def _blocks(text: str) -> Iterator[str]:
    """Yield the functions and classes of a module, from their first line on."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield "\n".join(lines[node.lineno - 1 : node.end_lineno]).strip()

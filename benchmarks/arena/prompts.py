"""What is continued: random ids for random weights, source code for a pair that was trained."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from corpora import stdlib


def random_prompts(vocabulary: int, count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` ids, the same ones every time."""
    source = random.Random(length)
    return [[source.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def code_prompts(folder: Path, count: int, length: int) -> list[list[int]]:
    """The first `length` tokens of functions, each of another held-out standard-library module.

    Raises:
        ValueError: there are not enough of them.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    long = (ids for text in _functions() if len(ids := tokenizer.encode(text)) >= length)
    found = [ids[:length] for ids in islice(long, count)]
    if len(found) < count:
        raise ValueError(f"{len(found)} prompts of {length} tokens: expected {count}")
    return found


def _functions() -> Iterator[str]:
    for module in stdlib.load(pinned=False):
        start = module.text.find("\ndef ") + 1
        if module.split == "heldout" and start:
            yield module.text[start:]

"""Documents to one stream of tokens, and batches that are a function of their position."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from spsbench.tasks.corpora import functions, news, stdlib
from spsbench.tasks.corpora.splits import Split


@dataclass(frozen=True, slots=True)
class Mix:
    """How much generated text goes with the standard library, and the seed of all of it."""

    seed: int
    news: int
    functions: int


def library_texts(split: Split, *, pinned: bool = True) -> list[str]:
    """The standard library's modules of one split, in order of their paths."""
    return [module.text for module in stdlib.load(pinned=pinned) if module.split == split]


def news_texts(mix: Mix, split: Split) -> list[str]:
    """Generated news in groups of one to four items, so that a prompt may hold examples."""
    items = islice(news.items(mix.seed, split), mix.news)
    return [news.layout(group) for group in _groups(items, mix.seed)]


def function_texts(mix: Mix, split: Split) -> list[str]:
    """Generated functions in groups of one to four, two empty lines between them."""
    items = islice(functions.items(mix.seed, split), mix.functions)
    return [
        "\n\n".join(item.prompt + item.body for item in group) for group in _groups(items, mix.seed)
    ]


def documents(mix: Mix, split: Split, *, pinned: bool = True) -> list[str]:
    """All documents of one split in a seeded order."""
    texts = library_texts(split, pinned=pinned)
    texts += news_texts(mix, split) + function_texts(mix, split)
    random.Random(f"order/{mix.seed}").shuffle(texts)
    return texts


def _groups(items: Iterator[Any], seed: int) -> Iterator[list[Any]]:
    """Runs of one to four items."""
    rng = random.Random(f"groups/{seed}")
    while group := list(islice(items, rng.randint(1, 4))):
        yield group


def encode(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """One stream [N] of token ids: every document is followed by the end token."""
    ids: list[int] = []
    for row in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]:
        ids += [*row, tokenizer.eos_token_id]
    return torch.tensor(ids, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Stream:
    """Token ids [N] and the seed of the order in which windows of them are visited."""

    ids: Tensor
    seed: int

    def batch(self, index: int, size: int, length: int) -> Tensor:
        """Batch number `index` [size, length + 1]: a pure function of its arguments.

        An epoch visits every window once in a shuffled order; each epoch cuts the stream at
        another offset. The last, incomplete batch of an epoch is left out.

        Raises:
            ValueError: the stream is too short for one batch.
        """
        per_epoch = (len(self.ids) - length - 1) // length // size
        if per_epoch < 1:
            raise ValueError(f"{len(self.ids)} tokens hold no batch of {size} x {length}")
        epoch, place = divmod(index, per_epoch)
        order = torch.Generator().manual_seed((self.seed * 1009 + epoch) * 65_536 + length)
        offset = int(torch.randint(length, (1,), generator=order))
        shuffled = torch.randperm(per_epoch * size, generator=order)
        starts = shuffled[place * size : (place + 1) * size] * length + offset
        return self.ids[starts[:, None] + torch.arange(length + 1)]

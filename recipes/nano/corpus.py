"""The corpus of the pair: documents, the tokenizer made from them, and batches of their tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from nano import functions, news, stdlib
from nano.stdlib import Split
from spsbench.tasks.articles import layout

NEWS, FUNCTIONS, HELDOUT_NEWS = 6000, 4000, 400  # generated texts
END = "<|endoftext|>"  # ends a document; the only special token, id 0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to learn from, and held-out documents by what they are."""

    train: list[str]
    heldout: Mapping[str, list[str]]


def make_corpus(*, pinned: bool) -> Corpus:
    """Gather the standard library and generated texts, in a shuffled order of seed 0.

    News and functions come in groups of one to four, so that a prompt may hold examples.
    """
    library: dict[Split, list[str]] = {"train": [], "heldout": []}
    for module in stdlib.load(pinned=pinned):
        library[module.split].append(module.text)
    code = (
        "\n\n".join(item.prompt + item.body for item in group)
        for group in groups(functions.items(0, "train"), FUNCTIONS)
    )
    texts = [*library["train"], *news_texts("train", NEWS), *code]
    random.Random("order/0").shuffle(texts)
    return Corpus(
        texts, {"stdlib": library["heldout"], "news": news_texts("heldout", HELDOUT_NEWS)}
    )


def news_texts(split: Split, count: int) -> list[str]:
    """Return `count` news items of a split in groups."""
    return [layout(group) for group in groups(news.items(0, split), count)]


def groups(items: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """Cut the first `count` items into groups of one to four."""
    rng, chosen = random.Random("groups/0"), islice(items, count)
    while group := list(islice(chosen, rng.randint(1, 4))):
        yield group


def train_tokenizer(texts: Sequence[str], vocab: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of `vocab` entries that adds no token by itself.

    Raises:
        ValueError: the texts are too small to fill the vocabulary.
    """
    model = Tokenizer(BPE())
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    model.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    if model.get_vocab_size() != vocab:
        raise ValueError(f"the texts give {model.get_vocab_size()} tokens: expected {vocab}")
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token=END,
        eos_token=END,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Encode texts as one stream [N] of token ids, the end token after each document."""
    ids: list[int] = []
    for row in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]:
        ids += [*row, tokenizer.eos_token_id]
    return torch.tensor(ids, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Stream:
    """Token ids [N], and the seed of the order in which windows of them are visited."""

    ids: Tensor
    seed: int

    def batch(self, index: int, size: int, length: int) -> Tensor:
        """Return batch number `index` [size, length + 1], a pure function of the arguments.

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

"""The processors of a cell in token ids: the target's tokenizer reads words and tokens."""

from typing import Any

from spsbench.errors import DataError
from spsbench.loop.constraint import Path
from spsbench.models.cache import Loaded
from spsbench.models.third_party import silence
from spsbench.models.tokenizers import IdTokenizer
from spsbench.settings.cell import Cell
from spsbench.settings.processors import OF_ANSWER, Processors, ProcessorSettings


def processors_of(cell: Cell, loaded: Loaded) -> Processors | None:
    """Return the processors of a cell's texts in the target's token ids; None: all are off.

    They know no EOS ids where the cell ignores them. DataError: as `biases_of` and `words_of`.
    """
    settings = cell.processors
    if not settings.changed:
        return None
    penalty, _, scope = settings.repetition_penalty.partition(":")
    return Processors(
        biases=biases_of(settings, loaded.tokenizer, loaded.vocab_size),
        repetition=float(penalty),
        of_answer=scope == OF_ANSWER,
        frequency=settings.frequency_penalty,
        presence=settings.presence_penalty,
        ngram=settings.no_repeat_ngram,
        words=words_of(settings, loaded.tokenizer, loaded.eos),
        least=settings.min_new_tokens,
        eos=frozenset() if cell.ignore_eos else loaded.eos,
    )


def as_requested(settings: ProcessorSettings, tokenizer: Any) -> dict[str, Any]:
    """Return the options that are on, with biases by token id; DataError: as `biases_of`."""
    biases = biases_of(settings, tokenizer, None)
    return settings.changed | ({"logit_bias": biases} if biases else {})


def biases_of(
    settings: ProcessorSettings, tokenizer: Any, vocab_size: int | None
) -> tuple[tuple[int, float], ...]:
    """Return (token id, bias) of each `logit_bias`, in order; its token is an id or a token's text.

    Ids must be below `vocab_size`; None: not checked. Raises DataError for an id outside the
    vocabulary, a text that is not one token or has no tokenizer here, and a second bias of a token.
    """
    biases: dict[int, float] = {}
    for text in settings.logit_bias:
        word, _, bias = text.rpartition("=")
        where = f"`logit_bias` {text}"
        ids = [int(word)] if word.isdecimal() else encode_bare(word, tokenizer, where)
        if len(ids) != 1:
            raise DataError(f"{where}: {word!r} is {len(ids)} tokens: expected one. Give an id")
        if vocab_size is not None and ids[0] >= vocab_size:
            raise DataError(f"{where}: token {ids[0]}: expected one below {vocab_size:,}")
        if ids[0] in biases:
            raise DataError(f"{where}: token {ids[0]} has a bias already: expected one. Add them")
        biases[ids[0]] = float(bias)
    return tuple(biases.items())


def words_of(
    settings: ProcessorSettings, tokenizer: Any, eos: frozenset[int] = frozenset()
) -> tuple[Path, ...]:
    """Return the ids of each of `bad_words`, as written and then after a space, each path once.

    DataError: a word that has no tokens or is one of `eos`, or no tokenizer here.
    """
    words: dict[Path, None] = {}
    for word in settings.bad_words:
        where = f"`bad_words` {word!r}"
        alone, spaced = (encode_bare(t, tokenizer, where) for t in (word, f" {word}"))
        if not alone or (len(alone) == 1 and alone[0] in eos):
            what = "has no tokens" if not alone else "is the end of a text"
            raise DataError(f"{where} {what}: expected a word. Leave it out")
        words |= {tuple(alone): None, tuple(spaced): None}
    return tuple(words)


def encode_bare(text: str, tokenizer: Any, where: str) -> list[int]:
    """Return the ids of a text without special tokens; DataError, led by `where`: no tokenizer."""
    if tokenizer is None:
        raise DataError(f"{where} without a tokenizer here: expected one. Name it with `target`")
    if isinstance(tokenizer, IdTokenizer):
        return tokenizer.encode(text)
    with silence():
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

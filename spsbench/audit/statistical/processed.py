"""Logits under processors by plain counting in float64, independent of `loop.processors`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from spsbench.audit.statistical.betting import Floats
from spsbench.settings.processors import Processors


def process_logits(
    logits: Floats, texts: Iterable[Sequence[int]], start: int, by: Processors | None
) -> Floats:
    """Return [n, V] logits under the processors `by`, a copy in float64; None: `logits` themselves.

    Row i of `logits` follows text i of `texts`: a prompt of `start` tokens, and the answer so far.
    """
    if by is None:
        return logits
    rows = logits.astype(np.float64)
    for row, text in zip(rows, texts, strict=True):
        answer = Counter(text[start:])
        for token, bias in by.biases:
            row[token : token + 1] += bias
        for token in set(text[start:] if by.of_answer else text):
            x = row[token : token + 1]
            x *= np.where(x < 0, by.repetition, 1 / by.repetition)
        for token, times in answer.items():
            row[token : token + 1] -= by.frequency * times + by.presence
        for token in bans(list(text), start, by):
            row[token : token + 1] = -np.inf
    return rows


def bans(text: list[int], start: int, by: Processors) -> Iterator[int]:
    """Yield tokens that may not follow a text: early EOS, ends of banned words and of n-grams."""
    if len(text) - start < by.least:
        yield from by.eos
    for word in by.words:
        if text[len(text) - len(word) + 1 :] == list(word[:-1]):
            yield word[-1]
    for at in range(len(text) - by.ngram + 1) if by.ngram else ():
        if text[at : at + by.ngram - 1] == text[len(text) - by.ngram + 1 :]:
            yield text[at + by.ngram - 1]

"""Columns: the tokens of a stated distribution that bets may name; all other tokens are the rest.

A column is one token, named by its id, whose probability is stated, chosen from the prefix alone:
the emitted token, which engines list beside the likeliest, is none by that. Texts of tokens name no
column, as several tokens may print one text.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from spsbench.audit.statistical.betting import Bits, Floats, lengths
from spsbench.audit.statistical.positions import Positions
from spsbench.foreign import UNLISTED
from spsbench.serving.engines import Stated

BY_ID = re.compile(r"#[0-9]+")  # keys that are ids, where an engine gives them
END = "end of text"  # the key of all tokens that end a text
NO_STRATUM = -1  # round boundaries are unknown from outside
EDGE = 0.05  # rounding tolerance: stated probabilities may exceed 1 by this mass


@dataclass(frozen=True, slots=True)
class Columns:
    """The known part of the distributions at n tokens of one text."""

    keys: list[list[str]]  # keys of the columns, likeliest first, each once in a row
    mass: Floats  # [n, k]; 0 in the padding of shorter rows
    own: NDArray[np.int64]  # [n] column of the emitted token; k = the rest
    tokens: list[str]  # keys of the emitted tokens
    drafted: Bits | None = None  # [n, k + 1] columns that a draft model prefers to the target
    flaw: str = ""  # why the statements are no probabilities

    def __len__(self) -> int:
        return len(self.own)

    def positions(self, visible: Bits | None) -> Positions:
        """Return what is known at each token; the last outcome is all tokens that are no column."""
        n, width = self.mass.shape
        law = np.hstack([self.mass, np.clip(1 - self.mass.sum(1, keepdims=True), 0.0, 1.0)])
        argmax, ends, tail = (np.zeros(law.shape, np.bool_) for _ in range(3))
        listed = np.ones(law.shape, np.bool_) if visible is None else visible
        argmax[np.arange(n), listed[:, :width].argmax(1)] = listed[:, :width].any(1)
        tail[:, width] = width > 1
        for i, row in enumerate(self.keys):
            ends[i, : len(row)] = [key == END for key in row]
        return Positions(
            law=law / law.sum(1, keepdims=True),
            emitted=self.own,
            argmax=argmax,
            ends=ends,
            tail=tail,
            index=np.full(n, NO_STRATUM),
            length=lengths(n),
            visible=visible,
            draft=None if self.drafted is None else self.drafted & listed,
            stated=self.mass,
            keys=self.keys,
            tokens=self.tokens,
        )


def is_whole(text: str) -> bool:
    """Return whether a text has characters, all of them whole: parts of one print alike."""
    return bool(text) and "\ufffd" not in text


def columns(stated: Sequence[Stated], tokens: Sequence[str], top: int) -> Columns:
    """Sort stated distributions into columns.

    Args:
        stated: likeliest tokens at each token, the emitted one beside them.
        tokens: keys of the emitted tokens.
        top: number of likeliest tokens that was asked for.
    """
    n = min(len(stated), len(tokens))
    keys: list[list[str]] = []
    mass, at, highest = np.zeros((n, top)), np.full(n, top), 0.0
    for i in range(n):
        likeliest = resolved(stated[i])[:top]
        counts = Counter(key for key, _ in likeliest)
        highest = max(highest, sum(chance(lp) for _, lp in likeliest))
        named = [entry for entry in likeliest if counts[entry[0]] == 1]
        keys.append([key for key, _ in named])
        mass[i, : len(named)] = [chance(lp) for _, lp in named]
        if tokens[i] in keys[i]:
            at[i] = keys[i].index(tokens[i])
    flaw = f"stated probabilities add up to {highest:.3f}" if highest > 1 + EDGE else ""
    if not all(BY_ID.fullmatch(key) for row in (tokens[:n], *keys) for key in row):
        flaw = "tokens are named by texts, which several may share, not by ids (`weights` can tell)"
    return Columns(keys, mass, at, list(tokens[:n]), flaw=flaw)


def resolved(row: Stated) -> Stated:
    """Return a row up to the first logarithm that states no probability (-9999, -inf, NaN)."""
    return list(takewhile(lambda entry: entry[1] > UNLISTED, row))


def chance(logprob: float) -> float:
    """Return the probability of a logarithm; one that is none adds up to too much."""
    return math.exp(min(logprob, 1.0))

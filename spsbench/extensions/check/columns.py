"""Columns: the tokens of a stated distribution that bets may name; all other tokens are the rest.

A column must be one token whose probability is stated, chosen from the prefix alone. Three things
stand against that where an engine names tokens by their texts. Several tokens may print one text:
some engines then list the text twice, others keep one of the probabilities (a JSON object has a key
once). The emitted token is listed even if it is outside of the likeliest, and may take the place of
another token with its text. And a list that lost a token so cannot be told from one that is whole.

So an emitted token belongs to a column only if both its text and its own probability are the
column's; else it is the rest, where its probability was left too. A text that was seen to belong to
several tokens (twice in a list, or emitted with another probability than the listed one) is the
rest from then on. A list that is shorter than asked for, without such a text in it, makes all of
its texts suspects until one of them is seen to be shared. And a token is a column only if it must
be among the likeliest whatever was emitted (`certain`).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from spsbench.audit.statistical.betting import Bits, Floats
from spsbench.serving.engines import Stated

BY_ID = re.compile(r"#[0-9]+")  # keys that are ids, where an engine gives them
END = "end of text"  # the key of all tokens that end a text
EDGE = 0.05  # rounding tolerance: stated probabilities may exceed 1 by this mass
UNRESOLVED = -9000.0  # logarithms up to here state no probability: engines write -9999 for none
SAME = 0.01  # nats between two statements of the probability of one token, at most
ROUNDED = 1e-3  # mass that printed digits may hide
EXAMPLES, QUOTED = 4, 20  # texts that a line names, characters of each
FEWEST = 8  # texts that contradict the list, before no list is believed


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


class SharedTexts:
    """The texts that several tokens print, learnt from one server's answers in their order."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self._short: list[frozenset[str]] = []  # lists that lost a token, for whatever text
        self._suspects: frozenset[str] = frozenset()
        self._listed: set[str] = set()  # texts that were emitted and listed
        self._contradicted: set[str] = set()  # texts with another probability than the listed one

    def __contains__(self, text: str) -> bool:
        return text in self.texts or text in self._suspects or not is_whole(text)

    def __len__(self) -> int:
        return len(self.texts | self._suspects)

    @property
    def examples(self) -> str:
        """Return some of the texts in quotes, those that are surely shared first."""
        listed = [*sorted(self.texts), *sorted(self._suspects - self.texts)]
        quoted = [repr(text[:QUOTED]) for text in listed[:EXAMPLES]]
        return ", ".join(quoted) + (", ..." if len(listed) > EXAMPLES else "")

    @property
    def contradicts(self) -> bool:
        """Return whether most texts have another probability beside the token than in the list."""
        count = len(self._contradicted)
        return count >= FEWEST and 2 * count > len(self._listed)

    def add_repeated(self, row: Stated) -> None:
        """Learn the texts that a list has twice."""
        self._add({key for key, count in Counter(key for key, _ in row).items() if count > 1})

    def add_outcome(self, row: Stated, text: str, logprob: float, lacking: int) -> None:
        """Learn from an emitted token, and from a list that lacks tokens, for the tokens after."""
        self.add_repeated(row)
        stated = [lp for key, lp in row if key == text]
        if stated:
            self._listed.add(text)
            if not any(agree(lp, logprob) for lp in stated):
                self._contradicted.add(text)
                self._add({text})
        keys = frozenset(key for key, _ in row)
        missing = 1 - sum(chance(lp) for _, lp in row)
        if lacking > 0 and missing > ROUNDED and not self._explains(keys):
            self._short.append(keys)
            self._suspects |= keys

    def add_answer(
        self, stated: Sequence[Stated], keys: Sequence[str], logprobs: Sequence[float]
    ) -> None:
        """Learn from a whole answer; the longest list of it lacks no token."""
        widest = max(map(len, stated), default=0)
        for row, key, logprob in zip(stated, keys, logprobs, strict=False):
            if not BY_ID.fullmatch(key):
                self.add_outcome(resolved(row), key, logprob, widest - len(row))

    def _explains(self, keys: frozenset[str]) -> bool:
        return not self.texts.isdisjoint(keys) or not all(map(is_whole, keys))

    def _add(self, texts: set[str]) -> None:
        if not texts <= self.texts:
            self.texts |= texts
            self._short = [keys for keys in self._short if not self._explains(keys)]
            self._suspects = frozenset().union(*self._short)


def is_whole(text: str) -> bool:
    """Return whether a text has characters, all of them whole: parts of one print alike."""
    return bool(text) and "\ufffd" not in text


def columns(
    stated: Sequence[Stated],
    tokens: Sequence[str],
    top: int,
    logprobs: Sequence[float] = (),
    shared: SharedTexts | None = None,
) -> Columns:
    """Sort stated distributions into columns.

    Args:
        stated: likeliest tokens at each token, the emitted one beside them.
        tokens: keys of the emitted tokens.
        top: number of likeliest tokens that was asked for.
        logprobs: log probability of each emitted token, needed where keys are texts.
        shared: what is known of the server's texts; it learns from these.
    """
    by_id = all(BY_ID.fullmatch(token) for token in tokens)
    shared = SharedTexts() if shared is None else shared
    n = min(len(stated), len(tokens)) if by_id else min(len(stated), len(tokens), len(logprobs))
    keys: list[list[str]] = []
    mass, at, highest = np.zeros((n, top)), np.full(n, top), 0.0
    for i in range(n):
        row = resolved(stated[i])
        likeliest, counts = row[:top], Counter(key for key, _ in row[:top])
        highest = max(highest, sum(chance(lp) for _, lp in likeliest))
        if by_id:
            named = [entry for entry in likeliest if counts[entry[0]] == 1]
        else:
            shared.add_repeated(likeliest)
            named = certain([entry for entry in likeliest if entry[0] not in shared], top)
        keys.append([key for key, _ in named])
        mass[i, : len(named)] = [chance(lp) for _, lp in named]
        if tokens[i] in keys[i]:
            column = keys[i].index(tokens[i])
            if by_id or agree(named[column][1], logprobs[i]):
                at[i] = column
        if not by_id:
            shared.add_outcome(row, tokens[i], logprobs[i], top - len(stated[i]))
    flaw = f"stated probabilities add up to {highest:.3f}" if highest > 1 + EDGE else ""
    if shared.contradicts:
        flaw = flaw or "tokens have another probability in the list than beside them"
    return Columns(keys, mass, at, list(tokens[:n]), flaw=flaw)


def resolved(row: Stated) -> Stated:
    """Return a row up to the first logarithm that states no probability (-9999, -inf, NaN)."""
    return list(takewhile(lambda entry: entry[1] > UNRESOLVED, row))


def certain(row: Stated, top: int) -> Stated:
    """Return the entries that are among the `top` likeliest whatever token was emitted.

    An emitted token outside of the likeliest is at most as likely as each of them. Where J of them
    have the mass s, it and the other top - J share 1 - s at most.
    """
    left, count = 1.0 + ROUNDED, 0
    while count < min(top, len(row)) and chance(row[count][1]) * (top + 1 - count) > left:
        left -= chance(row[count][1])
        count += 1
    return row[:count]


def agree(listed: float, beside: float) -> bool:
    """Return whether the logarithm beside a token may be the listed one; 0 stands for none."""
    return beside == 0.0 or abs(listed - beside) <= SAME


def chance(logprob: float) -> float:
    """Return the probability of a logarithm; one that is none adds up to too much."""
    return math.exp(min(logprob, 1.0))

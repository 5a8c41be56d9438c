"""Columns: the tokens at each place of a text whose probability is known, and that may be bet on.

A column is chosen from the prefix alone, whatever token was emitted there. Engines list that token
beside the likeliest, in several ways: `TopLists` tells the likeliest by what no outcome moves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.audit.statistical.betting import Bits, Floats, lengths
from spsbench.audit.statistical.positions import TextPositions
from spsbench.serving.engines import Stated
from spsbench.serving.wire import UNLISTED

BY_ID = re.compile(r"#[0-9]++")  # keys that are ids, where an engine gives them
END = "end of text"  # the key of all tokens that end a text
NO_STRATUM = -1  # round boundaries are unknown from outside
EDGE = 0.06  # rounding tolerance: stated probabilities may exceed 1 by this mass
UNLIKELY = math.log(1e-6)  # the chance by which lists of one token are taken as documented
TWICE = 0.1  # nats between two entries of one token, which engines round differently


@dataclass(frozen=True, slots=True)
class Columns:
    """The known part of the distributions at n tokens of one text."""

    keys: list[list[str]]  # keys of the columns, likeliest first, each once in a row
    mass: Floats  # [n, k]; 0 in the padding of shorter rows
    emitted: NDArray[np.int64]  # [n] column of the emitted token; k = the rest
    tokens: list[str]  # keys of the emitted tokens
    drafted: Bits | None = None  # [n, k + 1] columns that a draft model prefers to the target
    flaw: str = ""  # why the statements are no probabilities
    unstated: int = 0  # tokens of which nothing is stated but that they were emitted

    def __len__(self) -> int:
        return len(self.emitted)

    def positions(self, visible: Bits | None) -> TextPositions:
        """Return each token's outcomes: k columns, likeliest first, then all other tokens as one.

        `visible` [n, k + 1] are the outcomes known not to be hidden; None: all. The argmax is the
        first visible column, if any; the tail is the outcome of all other tokens, if k > 1.
        """
        n, width = self.mass.shape
        probs = np.hstack([self.mass, np.clip(1 - self.mass.sum(1, keepdims=True), 0.0, 1.0)])
        argmax, ends, tail = (np.zeros(probs.shape, np.bool_) for _ in range(3))
        listed = np.ones(probs.shape, np.bool_) if visible is None else visible
        argmax[np.arange(n), listed[:, :width].argmax(1)] = listed[:, :width].any(1)
        tail[:, width] = width > 1
        for i, row in enumerate(self.keys):
            ends[i, : len(row)] = [key == END for key in row]
        return TextPositions(
            probs=probs / probs.sum(1, keepdims=True),
            emitted=self.emitted,
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


class TopLists:
    """Sorts the rows of one server into columns by what the prefix alone decides.

    A row has the likeliest tokens T, and may have the emitted token e beside them. Where the row
    lacks e, or has a token less likely than e, it is T, since T has whatever is likelier than any
    of it. Elsewhere e, among the lowest, may be one of T or beside it. Two rules choose columns
    then as they would for any other e:

    - Where all rows so far had a T of one length k, and some have shown how a token outside T is
      listed, a row with one more token than k has e beside T.
    - Else the columns are the tokens above the n-th entry, where each T has n entries or more: a
      token e outside T is none of them, and changes none, whatever it ties with.

    `length` is that of T in a text in which e is always in T; 0: unknown. `documented`: the engine
    documents that e is listed in addition to T. Where T is one token, no row of a server that
    always emits it shows that; it is believed once rows after equal prefixes have listed the same
    token, as they would not if each had e in place of T.
    """

    def __init__(self, length: int = 0, *, documented: bool = False) -> None:
        self._lengths = {length} if length else set[int]()
        self._lists_emitted = False  # a row had e
        self._shows_outsiders = False  # by rows that lack e or are longer
        self._documented = documented and length == 1
        self._after: dict[int, str] = {}  # hash of prompt and text -> the one token listed after it
        self._doubt = 0.0  # log of the chance that those of equal prefixes agree if each is e

    def columns(
        self,
        rows: Sequence[Stated],
        tokens: Sequence[str],
        own: Sequence[float] = (),
        prompt: object = None,
    ) -> Columns:
        """Return the columns of a text, with a flaw where none can be bet on; learn from its rows.

        `rows` are (key, logarithm) pairs for each of `tokens`, the keys of emitted tokens; a row
        beyond them is left out. `own` are logarithms stated of emitted tokens beside the rows, if
        any, and `prompt` is what is equal for texts after equal prompts (None: unknown). Flaws are
        sums above 1, and tokens named by texts.
        """
        listed = list(map(list_row, rows, tokens, chain(own, repeat(-math.inf))))
        text = as_columns([self._columns_of(row) for row in listed], tokens)
        highest = max((row.total for row in listed), default=0.0)
        flaw = f"stated probabilities add up to {highest:.3f}" if highest > 1 + EDGE else ""
        named = (*text.tokens, *(key for row in listed for key, _ in row.top))
        if not all(map(BY_ID.fullmatch, named)):
            flaw = "tokens are named by texts, which several may share, not by ids (`weights` tell)"
        unstated = sum(map(self._is_unstated, listed))
        for row in listed:
            self._learn(row)
        if self._documented and prompt is not None:
            self._compare(listed, hash(prompt))
        return replace(text, flaw=flaw, unstated=unstated)

    @property
    def waits(self) -> bool:
        """Return whether lists of one token may still prove to be as documented."""
        return self._documented and not self._shows_outsiders

    def _compare(self, listed: Sequence["Listed"], prefix: int) -> None:
        """Learn whether lists of one token are as documented: alike after equal prefixes.

        The first prefix is `prefix`, a hash of the prompt, and each emitted token extends it. Once
        they agree where chance would not, `_shows_outsiders` is set.
        """
        for row in (row for row in listed if len(row.top) == 1):
            ((key, logprob),) = row.top
            if prefix in self._after:
                self._documented &= key == self._after[prefix]
                self._doubt += logprob
            self._after.setdefault(prefix, key)
            prefix = hash((prefix, row.emitted))
        self._shows_outsiders |= self._documented and self._doubt < UNLIKELY

    @property
    def _length(self) -> int:
        return min(self._lengths, default=0)

    def _is_unstated(self, row: "Listed") -> bool:
        """Return whether a row says nothing of the tokens that were not emitted."""
        return not row.top or (row.is_lowest and len(row.top) == 1 < self._length)

    def _columns_of(self, row: "Listed") -> Stated:
        """Return a row's tokens that its prefix alone had listed; empty: none of them is sure.

        A cut row lists all of them. Where all rows have one length, an emitted token beside the
        likeliest is left out; else the tokens are those above the last entry that every list has.
        """
        if row.is_cut:
            return row.top
        if self._is_unstated(row) or not (row.has_emitted or self._lists_emitted):
            return []
        if self._shows_outsiders and len(self._lengths) == 1:
            beside = row.is_lowest and len(row.top) > self._length
            return [entry for entry in row.top if entry[0] != row.emitted] if beside else row.top
        n = self._length - (not self._shows_outsiders)
        if n < 1:
            return []
        edge = row.top[n - 1][1] if len(row.top) >= n else -math.inf
        return [entry for entry in row.top if entry[1] > edge]

    def _learn(self, row: "Listed") -> None:
        """Learn the length of lists, and how they show an outsider; cut rows tell neither.

        A row in which the emitted token is not among the lowest tells the length; a row without it,
        or longer than known, shows how a token outside the likeliest is listed.
        """
        if row.is_cut or self._is_unstated(row):
            return
        self._lists_emitted |= row.has_emitted
        if not row.has_emitted and not self._lists_emitted:
            return
        if not row.is_lowest:
            self._lengths.add(len(row.top))
            self._shows_outsiders |= not row.has_emitted
        elif self._lengths and len(row.top) > self._length:
            self._shows_outsiders = True


class Listed(NamedTuple):
    """A row of a server: its tokens with a stated probability, and where the emitted one is."""

    top: Stated  # likeliest first, each token once
    emitted: str
    total: float  # stated probabilities of the row
    has_emitted: bool
    is_lowest: bool  # the emitted token, or what it ties with, ends the row
    is_cut: bool  # other tokens are stated to have no probability: `top` has all that have one


def list_row(row: Stated, emitted: str, own: float) -> Listed:
    """Return `row`, likeliest first, as `Listed`; `emitted` joins it with its logarithm `own`.

    It does not where it is listed, or none is stated (`own` is 0 or -inf). Entries from the first
    up to `UNLISTED` on are left out; one above 0 stays, and is in `total`. A key with two different
    probabilities is of two tokens, and left out of `top`.
    """
    entries = resolve_row(row)
    is_cut = bool(entries) and any(key != emitted for key, _ in row[len(entries) :])
    if UNLISTED < own < 0 and all(key != emitted for key, _ in row):
        entries = sorted([*entries, (emitted, own)], key=lambda entry: -entry[1])
    by_key: dict[str, list[float]] = {}
    for key, logprob in entries:
        logprobs = by_key.setdefault(key, [logprob])
        if logprobs[0] - logprob > TWICE:
            logprobs.append(logprob)
    top = [(key, logprobs[0]) for key, logprobs in by_key.items() if len(logprobs) == 1]
    total = sum(chance(logprob) for logprobs in by_key.values() for logprob in logprobs)
    place = next((logprob for key, logprob in top if key == emitted), None)
    is_lowest = place is not None and place <= top[-1][1]
    return Listed(top, emitted, total, place is not None, is_lowest, is_cut)


def as_columns(rows: Sequence[Stated], tokens: Sequence[str]) -> Columns:
    """Return all probabilities that the rows of `tokens` state as columns, whatever was emitted."""
    rows = [resolve_row(row) for row, _ in zip(rows, tokens, strict=False)]
    n, width = len(rows), max([1, *map(len, rows)])
    mass, at = np.zeros((n, width)), np.full(n, width)
    keys = [[key for key, _ in row] for row in rows]
    for i, row in enumerate(rows):
        mass[i, : len(row)] = [chance(logprob) for _, logprob in row]
        at[i] = keys[i].index(tokens[i]) if tokens[i] in keys[i] else width
    return Columns(keys, mass, at, list(tokens[:n]))


def resolve_row(row: Stated) -> Stated:
    """Return a row up to the first logarithm that states no probability (-9999, -inf, NaN)."""
    return list(takewhile(lambda entry: entry[1] > UNLISTED, row))


def chance(logprob: float) -> float:
    """Return exp(logprob), at most e: of a logarithm above 0 it makes a sum exceed 1."""
    return math.exp(min(logprob, 1.0))

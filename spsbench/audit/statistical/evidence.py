"""What an audit keeps of each emitted token: which sets it fell into, and their chances.

Given all that came before it, a token of an exact method falls into a set with just the chance that
the target's law q gives to that set, so that the sum of `hit - mass` is a martingale. The sets may
be chosen from the past alone; each of them is a direction in which a law can be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Whole = NDArray[np.int64]

DIRECTIONS = ("draft", "argmax", "eos", "tail")
"""Tokens that the suspect favours (p > q); q's likeliest; those that end the text; all but q's 50
likeliest."""
DRAFT, ARGMAX, EOS, TAIL = range(len(DIRECTIONS))
TOP = 50  # the tail is what comes after them

INDEX_STRATA = ("1st of its round", "2nd", "3rd", "4th or later")
LENGTH_STRATA = ("tokens 1-16", "17-64", "from 65")
LENGTH_ENDS = (16, 64)
REPEATS = 20  # seeded draws for the injected control


@dataclass(frozen=True, slots=True)
class Evidence:
    """n tokens in the order of their emission.

    Strata are known before the token is drawn: its place in the round (a round that went on has
    kept all before it, whatever comes next), and the length of the text. Whether the token was
    itself accepted is no stratum: that looks at the draw.
    """

    hit: Bits  # [n, D] is the token in the set?
    mass: Floats  # [n, D] q of the set
    pull: Floats  # [n] p of the draft direction's set, less q of it
    index: Whole  # [n] stratum by place in the round
    length: Whole  # [n] stratum by place in the text
    drawn: Bits  # [R, n, D] of seeded draws from q itself
    favoured: Bits  # [R, n, D] of seeded draws from q within the draft direction's set

    def __len__(self) -> int:
        return len(self.pull)

    @property
    def spread(self) -> Floats:
        """[n] variance of a hit in the draft direction."""
        mass = self.mass[:, DRAFT]
        return mass * (1 - mass)

    @classmethod
    def joined(cls, parts: Sequence["Evidence"]) -> "Evidence":
        """One after the other."""
        if not parts:
            return empty()
        along = {"drawn": 1, "favoured": 1}
        return cls(
            **{
                f.name: np.concatenate([getattr(e, f.name) for e in parts], along.get(f.name, 0))
                for f in fields(cls)
            }
        )


def empty() -> Evidence:
    """No tokens."""
    d = len(DIRECTIONS)
    return Evidence(
        np.zeros((0, d), np.bool_),
        np.zeros((0, d)),
        np.zeros(0),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros((REPEATS, 0, d), np.bool_),
        np.zeros((REPEATS, 0, d), np.bool_),
    )


def places(emitted: Sequence[int]) -> Whole:
    """[n] index stratum of each token of rounds that emitted so many tokens."""
    inside = [np.arange(count) for count in emitted]
    place = np.concatenate(inside) if inside else np.zeros(0)
    return np.minimum(place, len(INDEX_STRATA) - 1).astype(np.int64)


def lengths(n: int) -> Whole:
    """[n] length stratum of each token of a text."""
    return np.searchsorted(LENGTH_ENDS, np.arange(n), side="right").astype(np.int64)

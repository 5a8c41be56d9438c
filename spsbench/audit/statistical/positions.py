"""Positions of texts and the evidence at each: which sets the token hit, at what odds.

An outcome is a token of the vocabulary, or a column of a stated row with a last one for all other
tokens. Only visible outcomes are bet on.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import (
    DIRECTIONS,
    DRAFT,
    REPEATS,
    TAIL,
    TOP,
    Bits,
    Evidence,
    Floats,
    Whole,
    lengths,
    places,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The target's distributions at n tokens of a text, and what came."""

    law: Floats  # [n, W] of all outcomes
    emitted: Whole  # [n] outcome of the emitted token
    argmax: Bits  # [n, W] the likeliest visible outcome
    ends: Bits  # [n, W] outcomes that end a text
    tail: Bits  # [n, W] unlikely outcomes
    index: Whole  # [n] stratum by place in the round
    length: Whole  # [n] stratum by place in the text
    visible: Bits | None = None  # [n, W] outcomes known not to be hidden; None: all
    draft: Floats | Bits | None = None  # [n, W] the draft's law, or the outcomes that it prefers
    stated: Floats | None = None  # [n, k] probabilities of the columns as stated, unnormalised
    keys: Sequence[Sequence[Any]] = ()  # names of the columns of each row
    tokens: Sequence[Any]  # names of the emitted tokens

    def __len__(self) -> int:
        return len(self.emitted)


def of_vocabulary(
    law: Floats,
    tokens: Whole,
    eos: Set[int],
    rounds: Sequence[int],
    first: int,
    draft: Floats | None,
) -> Positions:
    """Return the positions of tokens whose outcomes are all tokens of the vocabulary.

    Args:
        rounds: the number of tokens that each round of the text emitted.
        first: position of the first of `tokens` in the text.
    """
    n, size = law.shape
    argmax, ends, tail = (np.zeros(law.shape, np.bool_) for _ in range(3))
    argmax[np.arange(n), law.argmax(-1)] = True
    ends[:, [token for token in eos if token < size]] = True
    if size > TOP:
        least = np.partition(law, size - TOP, axis=-1)[:, size - TOP]
        tail = law < least[:, None]
    here = slice(first, first + n)
    return Positions(
        law=law,
        emitted=tokens,
        argmax=argmax,
        ends=ends,
        tail=tail,
        index=places(rounds)[here],
        length=lengths(here.stop)[here],
        draft=draft,
        tokens=tokens.tolist(),
    )


def sets_of(at: Positions, favoured: Bits) -> Bits:
    """Return [n, D, W] the outcomes of each direction."""
    sets = np.stack([favoured, at.argmax, at.ends, at.tail], axis=1)
    if at.visible is not None:
        sets[:, :TAIL] &= at.visible[:, None]
    return sets


def evidence(
    at: Positions, favoured: Bits, rng: np.random.Generator, pull: Floats | None = None
) -> Evidence:
    """Return whether each token hit each set, and the probability of that.

    Args:
        favoured: [n, W] outcomes that an alternative favours.
        pull: [n] what the alternative adds to their probability; None: all that is left of 1.
    """
    n, rows = len(at), np.arange(len(at))
    sets = sets_of(at, favoured)
    law, live = at.law, np.ones((n, len(DIRECTIONS), 2), np.bool_)
    if at.visible is not None:
        law, live, tail = among_visible(at, at.visible)
    mass = masses(law, sets)
    if at.visible is not None:
        mass[:, TAIL] = tail
        mass *= live[:, :, 0]  # no spread where nothing is settled, so that controls skip it
    drawn, within = draws(law, sets, rng)
    bets = favoured.any(-1) & live[:, DRAFT, 0]
    return Evidence(
        hit=sets[rows, :, at.emitted] & live[:, :, 0],
        mass=mass,
        pull=np.where(bets, 1 - mass[:, DRAFT], 0.0) if pull is None else pull,
        index=at.index,
        length=at.length,
        drawn=drawn,
        favoured=within,
        live=live,
    )


def among_visible(at: Positions, visible: Bits) -> tuple[Floats, Bits, Floats]:
    """Return [n, W] the law among visible columns, [n, D, 2] the settled bets, [n] the tail's mass.

    The rest, of which a part may be hidden, comes with that probability beside them at most.
    """
    n, rest = len(at), at.law.shape[1] - 1
    inside = at.law * visible
    listed, unlisted = inside[:, :rest].sum(1), at.law[:, rest] * at.tail[:, rest]
    some = listed > 0
    law = np.where(some[:, None], inside, at.law) / np.where(some, listed, 1.0)[:, None]
    either = unlisted + listed
    settled = visible[np.arange(n), at.emitted]
    live = np.repeat(settled, 2 * len(DIRECTIONS)).reshape(n, len(DIRECTIONS), 2)
    live[:, TAIL, 0] |= (at.emitted == rest) & (either > 0)
    live[:, TAIL, 1] = False
    return law, live, unlisted / np.where(either > 0, either, 1)


def masses(law: Floats, sets: Bits) -> Floats:
    """Return [n, D] the probability of each set."""
    return np.stack([(law * sets[:, d]).sum(-1) for d in range(sets.shape[1])], axis=1).clip(0, 1)


def draws(law: Floats, sets: Bits, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Return [R, n, D] the sets of seeded draws, and of draws within the favoured set."""
    n, rows = len(law), np.arange(len(law))
    inside = law * sets[:, DRAFT]
    sets_of_draws = []
    for drawn_from in (law, np.where(inside.sum(-1, keepdims=True) > 0, inside, law)):
        cdf = drawn_from.cumsum(-1)
        points = rng.random((n, REPEATS)) * cdf[:, -1:]
        outcomes = np.stack(
            [np.searchsorted(row, at, side="right") for row, at in zip(cdf, points, strict=True)]
        ).clip(max=law.shape[1] - 1)
        sets_of_draws.append(np.stack([sets[rows, :, outcomes[:, r]] for r in range(REPEATS)]))
    return sets_of_draws[0], sets_of_draws[1]

"""Positions of texts: the target's distribution at each, what a fault would favour, the evidence.

Distributions are computed here, independent of `sampling.Warp`, in float64: temperature, then top-k
(ties with the k-th stay), then top-p (a token stays while the mass of the tokens before it is below
p, likeliest first, equal ones by id), then min-p (a share of the largest probability stays).

An outcome is a token of the vocabulary, or a column of a stated row with a last one for all other
tokens. Only visible outcomes are bet on.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

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
    index_strata,
    lengths,
)
from spsbench.settings.cell import WarpSettings


@dataclass(frozen=True, slots=True)
class PositionProbs:
    """Distributions of n positions, and the distance of tokens from the boundary of the support."""

    probs: Floats  # [n, V]
    scaled: Floats  # [n, V] logits over the temperature, the largest 0
    least: Floats  # [n] the least scaled logits that top-k and min-p keep
    mass: Floats  # [n, V] mass of the likelier tokens that top-k keeps
    top_p: float

    def outside(self, tokens: Whole) -> Floats:
        """Return [n] the distance of tokens beyond the support: 0 within it, inf for banned ones.

        The unit is logits if top-k or min-p cut the token, and mass if top-p did.
        """
        rows = np.arange(len(tokens))
        scaled = self.scaled[rows, tokens]
        below = np.maximum(self.least - np.maximum(scaled, np.finfo(np.float64).min), 0.0)
        below = np.where(np.isneginf(scaled), np.inf, below)
        over = np.maximum(self.mass[rows, tokens] - self.top_p, 0.0)
        cut = np.where(below > 0, below, over)
        return np.where(self.probs[rows, tokens] > 0, 0.0, np.maximum(cut, 1e-300))


def greatest_difference(a: Floats, b: Floats) -> float:
    """Return the greatest difference of logits in two arrays; two banned tokens do not differ."""
    with np.errstate(invalid="ignore"):
        return float(np.where(a == b, 0.0, np.abs(a - b)).max())


def distributions_of(logits: Floats, warp: WarpSettings) -> PositionProbs:
    """Return n distributions of [n, V] logits under temperature (not 0), top-k, top-p and min-p."""
    n, size = logits.shape
    scaled = (logits.astype(np.float64) - logits.max(-1, keepdims=True)) / warp.temperature
    least = np.full(n, -np.inf)
    if 0 < warp.top_k < size:
        least = np.partition(scaled, size - warp.top_k, axis=-1)[:, size - warp.top_k]
    weights = np.where(scaled >= least[:, None], np.exp(scaled), 0.0)
    probs = weights / weights.sum(-1, keepdims=True)
    mass = np.zeros_like(probs)
    if warp.top_p < 1:
        order = np.argsort(-probs, axis=-1, kind="stable")
        ranked = np.take_along_axis(probs, order, -1)
        before = np.concatenate([np.zeros((n, 1)), ranked.cumsum(-1)[:, :-1]], axis=-1)
        np.put_along_axis(mass, order, before, -1)
        probs = np.where(mass < warp.top_p, probs, 0.0)
    if warp.min_p > 0:
        least = np.maximum(least, np.log(warp.min_p))
        probs = np.where(probs >= warp.min_p * probs.max(-1, keepdims=True), probs, 0.0)
    return PositionProbs(probs / probs.sum(-1, keepdims=True), scaled, least, mass, warp.top_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPositions:
    """The target's distributions at n tokens of a text, and what came."""

    probs: Floats  # [n, W] probabilities of all outcomes
    emitted: Whole  # [n] outcome of the emitted token
    argmax: Bits  # [n, W] the likeliest visible outcome
    ends: Bits  # [n, W] outcomes that end a text
    tail: Bits  # [n, W] unlikely outcomes
    index: Whole  # [n] stratum by place in the round
    length: Whole  # [n] stratum by place in the text
    visible: Bits | None = None  # [n, W] outcomes known not to be hidden; None: all
    draft: Floats | Bits | None = None  # [n, W] the draft's distribution, or what it prefers
    stated: Floats | None = None  # [n, k] probabilities of the columns as stated, unnormalised
    keys: Sequence[Sequence[Any]] = ()  # names of the columns of each row
    tokens: Sequence[Any]  # names of the emitted tokens

    def __len__(self) -> int:
        return len(self.emitted)


def of_vocabulary(
    probs: Floats,
    tokens: Whole,
    eos: Set[int],
    rounds: Sequence[int],
    first: int,
    draft: Floats | None,
) -> TextPositions:
    """Return the positions of tokens whose outcomes are all V tokens of the vocabulary.

    `probs` [n, V] are the target's distributions at `tokens` [n], which begin at position `first`
    of a text; `rounds` has the number of tokens that each round of the text emitted. `eos` are the
    tokens that end a text, and `draft` [n, V] the draft's distributions, None without a draft.
    """
    n, size = probs.shape
    argmax, ends, tail = (np.zeros(probs.shape, np.bool_) for _ in range(3))
    argmax[np.arange(n), probs.argmax(-1)] = True
    ends[:, [token for token in eos if token < size]] = True
    if size > TOP:
        least = np.partition(probs, size - TOP, axis=-1)[:, size - TOP]
        tail = probs < least[:, None]
    here = slice(first, first + n)
    return TextPositions(
        probs=probs,
        emitted=tokens,
        argmax=argmax,
        ends=ends,
        tail=tail,
        index=index_strata(rounds)[here],
        length=lengths(here.stop)[here],
        draft=draft,
        tokens=tokens.tolist(),
    )


def sets_of(at: TextPositions, favoured: Bits) -> Bits:
    """Return [n, D, W] the outcomes of each direction, but for the tail only visible ones."""
    sets = np.stack([favoured, at.argmax, at.ends, at.tail], axis=1)
    if at.visible is not None:
        sets[:, :TAIL] &= at.visible[:, None]
    return sets


def evidence(
    at: TextPositions, favoured: Bits, rng: np.random.Generator, pull: Floats | None = None
) -> Evidence:
    """Return the evidence of n tokens for one alternative, with `REPEATS` seeded draws of q.

    `favoured` [n, W] are the outcomes that it favours, `pull` [n] is what it adds to their
    probability (None: all that is left of 1), and `rng`, which moves on, makes the draws. Hidden
    columns are in no set, and where the token's is hidden no bet is resolved.
    """
    n, rows = len(at), np.arange(len(at))
    sets = sets_of(at, favoured)
    probs, live = at.probs, np.ones((n, len(DIRECTIONS), 2), np.bool_)
    if at.visible is not None:
        probs, live, tail = among_visible(at, at.visible)
    mass = masses(probs, sets)
    if at.visible is not None:
        mass[:, TAIL] = tail
        mass *= live[:, :, 0]  # no spread where nothing is resolved, so that controls skip it
    drawn, within = draw_sets(probs, sets, rng)
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


def among_visible(at: TextPositions, visible: Bits) -> tuple[Floats, Bits, Floats]:
    """Return [n, W] probs of visible columns, [n, D, 2] `Evidence.live`, [n] the tail's mass.

    Listed columns sum to 1; the unlisted rest, part of it hidden, has the tail's mass at most.
    """
    n, last = len(at), at.probs.shape[1] - 1
    inside = at.probs * visible
    listed, unlisted = inside[:, :last].sum(1), at.probs[:, last] * at.tail[:, last]
    some = listed > 0
    probs = np.where(some[:, None], inside, at.probs) / np.where(some, listed, 1.0)[:, None]
    either = unlisted + listed
    resolved = visible[np.arange(n), at.emitted]
    live = np.repeat(resolved, 2 * len(DIRECTIONS)).reshape(n, len(DIRECTIONS), 2)
    live[:, TAIL, 0] |= (at.emitted == last) & (either > 0)
    live[:, TAIL, 1] = False
    return probs, live, unlisted / np.where(either > 0, either, 1)


def masses(probs: Floats, sets: Bits) -> Floats:
    """Return [n, D] the probability of each set."""
    return np.stack([(probs * sets[:, d]).sum(-1) for d in range(sets.shape[1])], axis=1).clip(0, 1)


def draw_sets(probs: Floats, sets: Bits, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Return [REPEATS, n, D] which `sets` [n, D, W] draws of `probs` [n, W] hit, of two kinds.

    First draws of all outcomes, then of those in the draft direction's set alone, but of all where
    it has no probability. `rng` moves on.
    """
    n, rows = len(probs), np.arange(len(probs))
    inside = probs * sets[:, DRAFT]
    sets_of_draws = []
    for drawn_from in (probs, np.where(inside.sum(-1, keepdims=True) > 0, inside, probs)):
        cdf = drawn_from.cumsum(-1)
        points = rng.random((n, REPEATS)) * cdf[:, -1:]
        outcomes = np.stack(
            [np.searchsorted(row, at, side="right") for row, at in zip(cdf, points, strict=True)]
        ).clip(max=probs.shape[1] - 1)
        sets_of_draws.append(np.stack([sets[rows, :, outcomes[:, r]] for r in range(REPEATS)]))
    return sets_of_draws[0], sets_of_draws[1]


class Alternative(Protocol):
    """A fault to bet on; it may learn from the texts of one method, in their order."""

    name: str

    def favoured(self, at: TextPositions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return [n, W] the favoured outcomes, and [n] what the fault adds to their probability.

        `context` has the names of all tokens before the first of `at`.
        """


class DraftPreferred:
    """The tokens that the draft's distribution prefers to the target's."""

    name = "tokens that the draft model prefers"

    def favoured(self, at: TextPositions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return where p > q, and [n] the sum of p - q there.

        A `draft` of bits is where; without one that is nowhere. The sum is None for both.
        """
        if at.draft is None:
            return np.zeros(at.probs.shape, np.bool_), None
        if at.draft.dtype == np.bool_:
            return np.asarray(at.draft, np.bool_), None
        favoured = at.draft > at.probs
        return favoured, ((at.draft - at.probs) * favoured).sum(-1)


class Likeliest:
    """The target's argmax."""

    name = "the likeliest token"

    def favoured(self, at: TextPositions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return the argmax where a bet on it is possible; None: no pull."""
        # among all tokens where it is not certain, among columns where it is possible
        return at.argmax & (at.probs > 0 if at.keys else at.probs < 1), None


class Followed:
    """The token that followed the last occurrence of the newest two, as prompt lookup proposes.

    `otherwise` is what is favoured where the two are new; None: nothing.
    """

    name = "the token that followed last time"

    def __init__(self, otherwise: Alternative | None = None) -> None:
        self._otherwise = otherwise

    def favoured(self, at: TextPositions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return [n, W] what followed the newest two tokens last, else as `otherwise`, and None."""
        favoured = np.zeros(at.probs.shape, np.bool_)
        text, last = [*context, *at.tokens], dict[tuple[Any, ...], Any]()
        for end in range(2, len(text)):
            i, pair = end - len(context), tuple(text[end - 2 : end])
            if i >= 0 and pair in last:
                if at.keys:
                    favoured[i, : len(at.keys[i])] = [key == last[pair] for key in at.keys[i]]
                else:
                    favoured[i, last[pair]] = True
            last[pair] = text[end]
        if self._otherwise is not None:
            others = self._otherwise.favoured(at, context)[0]
            favoured = np.where(favoured.any(-1, keepdims=True), favoured, others)
        return favoured if at.visible is None else favoured & at.visible, None


class Excess:
    """The columns that exceeded their expected counts, by rank, by token, and by token before."""

    name = "tokens above their expected count"

    def __init__(self) -> None:
        self._counts: dict[Any, list[float]] = {}

    def favoured(self, at: TextPositions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return [n, W] columns whose three deviations sum above 0 so far, None; count tokens."""
        favoured, text = np.zeros(at.probs.shape, np.bool_), [*context, *at.tokens]
        stated = at.probs if at.stated is None else at.stated
        for i, keys in enumerate(at.keys):
            before = text[len(context) + i - 1] if len(context) + i else ""
            visible = None if at.visible is None else at.visible[i]
            cells = {
                j: (j, key, (before, key))
                for j, key in enumerate(keys)
                if visible is None or visible[j]
            }
            for j, counted in cells.items():
                favoured[i, j] = sum(map(self._deviation, counted)) > 0
            if visible is None or visible[at.emitted[i]]:  # after all columns have their sets
                among = 1.0 if visible is None else stated[i, visible[:-1]].sum()
                for j, counted in cells.items():
                    for cell in counted:
                        count = self._counts.setdefault(cell, [0.0, 0.0])
                        count[0] += bool(at.emitted[i] == j)
                        count[1] += float(stated[i, j] / among)
        return favoured, None

    def _deviation(self, cell: Any) -> float:
        """Return the observed less the expected count, in standard errors that begin at 1."""
        came, expected = self._counts.get(cell, (0.0, 0.0))
        return float((came - expected) / (expected + 1) ** 0.5)


def evidence_of(
    blocks: Iterable[TextPositions],
    alternatives: Sequence[Alternative],
    rng: np.random.Generator,
    context: Sequence[Any] = (),
) -> list[Evidence]:
    """Return the evidence of a text, given in blocks after a context, one for each alternative."""
    parts: list[list[Evidence]] = [[] for _ in alternatives]
    before = [*context]
    for at in blocks:
        for collected, alternative in zip(parts, alternatives, strict=True):
            favoured, pull = alternative.favoured(at, before)
            collected.append(evidence(at, favoured, rng, pull))
        before += at.tokens
    return [Evidence.joined(part) for part in parts]

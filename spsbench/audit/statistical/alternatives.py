"""Alternatives: the tokens that a faulty method would favour, known from the prefix alone."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from spsbench.audit.statistical.betting import Bits, Evidence, Floats
from spsbench.audit.statistical.positions import Positions, evidence


class Alternative(Protocol):
    """A fault to bet on; it may learn from the texts of one method, in their order."""

    name: str

    def favoured(self, at: Positions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return [n, W] the favoured outcomes, and [n] what the fault adds to their probability.

        Args:
            context: names of all tokens before the first of `at`.
        """


class DraftLaw:
    """The tokens that the draft's distribution prefers to the target's."""

    name = "tokens that the draft model prefers"

    def favoured(self, at: Positions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return them, and how much likelier they are there, if the distribution is known."""
        if at.draft is None:
            return np.zeros(at.law.shape, np.bool_), None
        if at.draft.dtype == np.bool_:
            return np.asarray(at.draft, np.bool_), None
        favoured = at.draft > at.law
        return favoured, ((at.draft - at.law) * favoured).sum(-1)


class Likeliest:
    """The target's argmax."""

    name = "the likeliest token"

    def favoured(self, at: Positions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return it: of a vocabulary where it is not certain, of columns where it is possible."""
        return at.argmax & (at.law > 0 if at.keys else at.law < 1), None


class Followed:
    """The token that followed the last occurrence of the newest two, as prompt lookup proposes.

    Args:
        otherwise: what is favoured where they are new.
    """

    name = "the token that followed last time"

    def __init__(self, otherwise: Alternative | None = None) -> None:
        self._otherwise = otherwise

    def favoured(self, at: Positions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return it, where there is one and it is an outcome."""
        favoured = np.zeros(at.law.shape, np.bool_)
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

    def favoured(self, at: Positions, context: Sequence[Any]) -> tuple[Bits, Floats | None]:
        """Return the columns in excess so far, and count each token after its own bet."""
        favoured, text = np.zeros(at.law.shape, np.bool_), [*context, *at.tokens]
        stated = at.law if at.stated is None else at.stated
        for i, keys in enumerate(at.keys):
            before = text[len(context) + i - 1] if len(context) + i else ""
            shown = None if at.visible is None else at.visible[i]
            cells = {
                j: (j, key, (before, key))
                for j, key in enumerate(keys)
                if shown is None or shown[j]
            }
            for j, counted in cells.items():
                favoured[i, j] = sum(map(self._deviation, counted)) > 0
            if shown is None or shown[at.emitted[i]]:  # after all columns have their sets
                among = 1.0 if shown is None else stated[i, shown[:-1]].sum()
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
    blocks: Iterable[Positions],
    alternatives: Sequence[Alternative],
    rng: np.random.Generator,
    context: Sequence[Any] = (),
) -> list[Evidence]:
    """Return the evidence of a text, given in blocks after a context, for each alternative."""
    parts: list[list[Evidence]] = [[] for _ in alternatives]
    before = [*context]
    for at in blocks:
        for collected, alternative in zip(parts, alternatives, strict=True):
            favoured, pull = alternative.favoured(at, before)
            collected.append(evidence(at, favoured, rng, pull))
        before += at.tokens
    return [Evidence.joined(part) for part in parts]

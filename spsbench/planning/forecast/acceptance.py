"""Given the text that came out, how likely each drafted slot was kept.

The replay identity. A text of the target alone fixes the coins of every draft of it. Letters are
the paper's: q target, p draft, x_t the token that came out at position t. A round that starts at
position t drafts slots t, t + 1, ..., and keeps them up to the first that fails:

- `sps` keeps slot t with chance min(1, p / q) of x_t: the rule keeps x with mass min(p, q), and the
  text has x with mass q (Chen et al. 2023, Theorem 1).
- `match` with a sampled draft: p of x_t, the chance that the draft drew what the target drew.
- `block` keeps i slots or more with the least of 1 and the products p / q over the first 1, ..., i
  of them: not slot by slot, yet by the text alone (Sun et al. 2024; docs/plan.md has the proof).
- a draft by rule: 1 while it says what the text says, then 0.

The coins of different rounds are independent, since the noise of each round is fresh.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from spsbench.metrics.classifier import Fitted, fit
from spsbench.metrics.intervals import Floats
from spsbench.store.trace_records import Along, Drawn, Proposed, Written

VerifierRule = Literal["sps", "match", "block"]
LEAST = float(np.finfo(np.float32).tiny)  # a token that came out has a probability above 0


class Chances(Protocol):
    """What became of drafts along one text."""

    @property
    def one_by_one(self) -> bool:
        """Whether the rule tests slot by slot, so that `Round.tested` applies."""

    def slots(self, at: int, k: int) -> Floats:
        """[N] of a round that starts at position `at` and may draft `k` tokens.

        N <= k tokens are drafted; value i is the chance that slot i is kept given that those before
        it were. NaN where the trace does not tell: slots beyond its end.
        """

    def overlap(self, at: int) -> float | None:
        """`sum_x min(p, q)` of the slot at position `at`; None where it is not known."""


@dataclass(frozen=True)
class Sampled:
    """Of a draft that is drawn from a law which depends on the text alone, not on the round.

    Args:
        q: [L] the target's probability of each token that came out.
        p: [L] the draft's.
        rule: the verifier.
        shared: [L] `sum_x min(p, q)`.
    """

    q: Floats
    p: Floats
    rule: VerifierRule = "sps"
    shared: Floats | None = None

    @property
    def one_by_one(self) -> bool:
        """All but `block`."""
        return self.rule != "block"

    def slots(self, at: int, k: int) -> Floats:
        """As `Chances.slots`; it always drafts `k` tokens."""
        q, p = self.q[at : at + k], self.p[at : at + k]
        if self.rule == "match":
            found = p
        elif self.rule == "sps":
            found = np.minimum(1.0, p / q)
        else:
            kept = np.minimum(1.0, np.minimum.accumulate(np.cumprod(p / q)))
            before = np.concatenate([[1.0], kept[:-1]])
            found = np.divide(kept, before, out=np.zeros_like(kept), where=before > 0)
        return np.pad(found, (0, k - len(found)), constant_values=np.nan)

    def overlap(self, at: int) -> float | None:
        """As `Chances.overlap`."""
        return None if self.shared is None or at >= len(self.shared) else float(self.shared[at])


@dataclass(frozen=True)
class Looked:
    """Of a draft by rule: what it proposed when it was asked at each position of the text.

    Asked for fewer tokens it must propose the first of the same ones.

    Args:
        proposed: [L] tokens it proposes after the first t of the text, asked for as many as ever.
        hits: [L] how many of them are what the text goes on with, from the first on.
    """

    proposed: Sequence[int]
    hits: Sequence[int]

    @property
    def one_by_one(self) -> bool:
        """It does."""
        return True

    def slots(self, at: int, k: int) -> Floats:
        """As `Chances.slots`; what it proposes beyond the end of the text is not known."""
        if at >= len(self.proposed):
            return np.full(k, np.nan)
        n, hits = min(k, self.proposed[at]), self.hits[at]
        found = np.zeros(n)
        found[:hits] = 1.0
        if at + hits >= len(self.proposed):
            found[hits:] = np.nan
        return found

    def overlap(self, at: int) -> float | None:
        """Not known: it depends on what was proposed."""
        return None


@dataclass(frozen=True)
class Stopped:
    """The same with a schedule whose `go_on` stops before some slots, by the laws of the draft.

    Along the text it is exact, and so are rounds, accepted and emitted tokens. What is drafted is
    not: after a token that will be rejected the draft goes on along a path of its own, whose laws
    no text shows. There the laws of the text stand in.

    Args:
        most: [L] slots that it lets be drafted in a round from each position, along the text.
    """

    inner: Chances
    most: Sequence[int]

    @property
    def one_by_one(self) -> bool:
        """As inside."""
        return self.inner.one_by_one

    def slots(self, at: int, k: int) -> Floats:
        """As `Chances.slots`."""
        return self.inner.slots(at, min(k, self.most[at]) if at < len(self.most) else k)

    def overlap(self, at: int) -> float | None:
        """As inside."""
        return self.inner.overlap(at)


def acceptance_chances(
    text: Written, along: Along, rule: VerifierRule, schedule: str | None = None
) -> Chances:
    """The coins of a text for a rule; under a schedule that reads laws, its stops among them."""
    if isinstance(along, Proposed):
        return Looked(along.proposed.tolist(), along.hits.tolist())
    found = Sampled(np.maximum(text.q, LEAST), along.p, rule, along.overlap)
    if schedule is not None and schedule in along.stops:
        return Stopped(found, along.stops[schedule].tolist())
    return found


def fit_along(traced: Iterable[Along]) -> Fitted:
    """The regression over all positions of the traces of one sampled draft.

    The label is `sum_x min(p, q)`: what `sps` keeps; at temperature 0, whether the draft agrees.

    Raises:
        UsageError: too few positions, or a draft by rule: it has no law to look at.
    """
    drawn = [each for each in traced if isinstance(each, Drawn)]
    ends = [len(each.p) if each.reach is None else each.reach for each in drawn]
    columns = [
        np.concatenate([getattr(each, name)[:end] for each, end in zip(drawn, ends, strict=True)])
        if drawn
        else np.zeros(0)
        for name in ("entropy", "peak", "overlap")
    ]
    return fit(columns[0], columns[1], np.clip(columns[2], 0.0, 1.0))  # sums of single precision

"""Acceptance chances of each drafted slot, given the generated text.

The replay identity: a text of the target alone determines the acceptance chances of every draft
along the text. Letters are the paper's: q target, p draft, x_t the generated token at position t. A
round that starts at position t drafts slots t, t + 1, ..., and keeps slots up to the first
rejection:

- `sps` keeps slot t with chance min(1, p / q) of x_t: the rule keeps x with mass min(p, q), and the
  text has x with mass q (Chen et al. 2023, Theorem 1).
- `match` with a sampled draft: p of x_t, the chance that draft and target sample the same token.
- `block` keeps i slots or more with the least of 1 and the products p / q over the first 1, ..., i
  of them: not slot by slot, yet by the text alone (Sun et al. 2024; docs/plan.md has the proof).
- a deterministic draft: 1 while the draft equals the text, then 0.

Acceptances in different rounds are independent, since the noise of each round is fresh.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from spsbench.metrics.classifier import Fitted, fit
from spsbench.metrics.intervals import Floats
from spsbench.store.trace_records import Along, Drawn, Proposed, Written

VerifierRule = Literal["sps", "match", "block"]
LEAST = float(np.finfo(np.float32).tiny)  # a generated token has a probability above 0


class Chances(Protocol):
    """Acceptance chances of drafts along one text."""

    @property
    def one_by_one(self) -> bool:
        """Return whether the rule tests slot by slot, so that `Round.tested` applies."""

    def slots(self, at: int, k: int) -> Floats:
        """Return [N] acceptance chances of a round that starts at `at` and drafts up to `k` tokens.

        N <= k tokens are drafted; value i is the chance that slot i is kept given that all earlier
        slots were kept. Slots beyond the end of the trace are NaN.
        """

    def overlap(self, at: int) -> float | None:
        """Return `sum_x min(p, q)` of the slot at position `at`; None where it is unknown."""


@dataclass(frozen=True)
class Sampled:
    """Acceptance chances of a draft whose distribution depends on the text alone, not the round.

    Args:
        q: [L] the target's probability of each generated token.
        p: [L] the draft's probability of each generated token.
        rule: the verifier.
        shared: [L] `sum_x min(p, q)`.
    """

    q: Floats
    p: Floats
    rule: VerifierRule = "sps"
    shared: Floats | None = None

    @property
    def one_by_one(self) -> bool:
        """Return whether the rule tests slot by slot: all rules but `block`."""
        return self.rule != "block"

    def slots(self, at: int, k: int) -> Floats:
        """See `Chances.slots`; the draft always has `k` tokens."""
        q, p = self.q[at : at + k], self.p[at : at + k]
        if self.rule == "match":
            chances = p
        elif self.rule == "sps":
            chances = np.minimum(1.0, p / q)
        else:
            kept = np.minimum(1.0, np.minimum.accumulate(np.cumprod(p / q)))
            before = np.concatenate([[1.0], kept[:-1]])
            chances = np.divide(kept, before, out=np.zeros_like(kept), where=before > 0)
        return np.pad(chances, (0, k - len(chances)), constant_values=np.nan)

    def overlap(self, at: int) -> float | None:
        """See `Chances.overlap`."""
        return None if self.shared is None or at >= len(self.shared) else float(self.shared[at])


@dataclass(frozen=True)
class Looked:
    """Acceptances of a deterministic draft: its proposal at each position of the text.

    A request for fewer tokens must return a prefix of the same proposal.

    Args:
        proposed: [L] tokens proposed after the first t tokens of the text, with the largest K.
        hits: [L] length of the prefix of the proposal that equals the text.
    """

    proposed: Sequence[int]
    hits: Sequence[int]

    @property
    def one_by_one(self) -> bool:
        """Return True."""
        return True

    def slots(self, at: int, k: int) -> Floats:
        """See `Chances.slots`; proposals beyond the end of the text are unknown."""
        if at >= len(self.proposed):
            return np.full(k, np.nan)
        n, hits = min(k, self.proposed[at]), self.hits[at]
        chances = np.zeros(n)
        chances[:hits] = 1.0
        if at + hits >= len(self.proposed):
            chances[hits:] = np.nan
        return chances

    def overlap(self, at: int) -> float | None:
        """Return None: the overlap depends on the proposal."""
        return None


@dataclass(frozen=True)
class Stopped:
    """Acceptance chances under a schedule whose `go_on` ends drafts by the draft's distributions.

    Exact along the text, and so are rounds, accepted and emitted tokens. The number of drafted
    tokens is not exact: after a token that will be rejected the draft continues along its own path,
    whose distributions the trace does not hold; the distributions along the text replace them.

    Args:
            most: [L] the most slots that the schedule drafts in a round from each position, along
            the text.
    """

    inner: Chances
    most: Sequence[int]

    @property
    def one_by_one(self) -> bool:
        """Return `one_by_one` of the wrapped chances."""
        return self.inner.one_by_one

    def slots(self, at: int, k: int) -> Floats:
        """See `Chances.slots`."""
        return self.inner.slots(at, min(k, self.most[at]) if at < len(self.most) else k)

    def overlap(self, at: int) -> float | None:
        """Return `overlap` of the wrapped chances."""
        return self.inner.overlap(at)


def acceptance_chances(
    text: Written, along: Along, rule: VerifierRule, schedule: str | None = None
) -> Chances:
    """Return the acceptance chances of a text for a rule, with the stops of the schedule."""
    if isinstance(along, Proposed):
        return Looked(along.proposed.tolist(), along.hits.tolist())
    chances = Sampled(np.maximum(text.q, LEAST), along.p, rule, along.overlap)
    if schedule is not None and schedule in along.stops:
        return Stopped(chances, along.stops[schedule].tolist())
    return chances


def fit_along(traced: Iterable[Along]) -> Fitted:
    """Fit the regression over all positions of the traces of one sampled draft.

    The label is `sum_x min(p, q)`, the acceptance chance of `sps`; at temperature 0, whether draft
    and target agree.

    Raises:
        UsageError: too few positions, or a deterministic draft, which has no distribution.
    """
    drawn = [along for along in traced if isinstance(along, Drawn)]
    ends = [len(along.p) if along.reach is None else along.reach for along in drawn]
    columns = [
        np.concatenate([getattr(along, name)[:end] for along, end in zip(drawn, ends, strict=True)])
        if drawn
        else np.zeros(0)
        for name in ("entropy", "peak", "overlap")
    ]
    return fit(columns[0], columns[1], np.clip(columns[2], 0.0, 1.0), ends)  # float32 sums

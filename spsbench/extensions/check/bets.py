"""Sequential test of a server's text against the distributions stated for its tokens.

The distributions come from the server, its baseline or the weights. A column is one token, named by
its id, whose probability is known, chosen from the prefix alone: the emitted token, which engines
list beside the likeliest, is none by that. All other tokens are the rest. The e-process of
`audit.statistical.betting` bets on sets of columns; each alternative has an equal share of the
capital, so the mean is one nonnegative martingale and the level holds for the whole.

An engine may leave tokens H out of its texts, such as the end of a text, or never sample them
although it states their probabilities. So the bets are among the tokens N that are known not to be
in H: those that this server has emitted before. With S within N and m = q(S) / q(N), a token x
multiplies the capital by

    f(x) = 1 + lam (1{x in S} - m) if x is in N, else 1,    with -1 / (1 - m) <= lam <= 1 / m.

**Theorem 1.** E[f] = 1 given the past. Proof: P(x = y) = w q(y) for all y in N with one w, which is
1 if H is left out or empty, and 1 / (1 - q(H)) if it is never sampled. So E[f] is
1 + w lam (q(S) - m q(N)) = 1. For x in H no row is stated, and f = 1 needs none.

**Theorem 2.** With the rest r, of which H may have g <= r, "the rest comes too often" is bet among
N and the rest against t = r / (r + q(N)), and E[f] <= 1 for lam >= 0. Proof: r (1 - t) = q(N) t, so
E[f] - 1 = w lam ((r - g) (1 - t) - q(N) t) = -w lam g (1 - t) <= 0. "Too rarely" has no such
bound, as g may be r, so it is not bet.

**Theorem 3.** An answer that does not balance is left out, and a token of which nothing is stated
is not bet on; what was emitted may decide which. Of n taken and k left out the capital is that of
the taken ones over (n + k + 1) binomial(n + k, k). Proof: for a share s, factors (1 - s) f where
taken and s where left out have the mean (1 - s) E[f; taken] + s P(left out) <= 1; over all s their
product has that divisor. It is 1 while nothing was left out: both alarm with 2 `level` at most.

Where nothing is hidden, N is all tokens and q(N) = 1: the whole distribution is bet on. This may
begin with any text, as soon as the texts before it show that the server samples and lists its ends.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import (
    ARGMAX,
    DIRECTIONS,
    DRAFT,
    EOS,
    LEVEL,
    TAIL,
    Bits,
    Control,
    Floats,
    claimable,
    inject,
)
from spsbench.audit.statistical.finding import AuditVerdict, Finding, MethodAudit, Test, share_test
from spsbench.audit.statistical.positions import (
    Alternative,
    DraftPreferred,
    Excess,
    Followed,
    Likeliest,
    evidence_of,
)
from spsbench.extensions.check.columns import END, Columns


class Mode(StrEnum):
    """Source of the distributions, strongest first."""

    WEIGHTS = "weights"
    BASELINE = "baseline"
    STATED = "stated"


UNSEEN = {
    Mode.WEIGHTS: "A bias smaller than the claim, or within the rounding. Without `draft`: one "
    "that follows the draft model alone, such as a missing residual, if no other set shows it.",
    Mode.BASELINE: "A bias smaller than the claim, and whatever the baseline shares with the "
    "server. With temperature 1 alone: a draft whose temperature is not applied.",
    Mode.STATED: "Whatever corrupts the stated probabilities as well: a wrong cache or position, "
    "a token that is printed but not the one that is fed, another model; and, with temperature 1, "
    "a draft whose temperature is not applied. `weights` sees these, `baseline` all but the last. "
    "A bias that follows the draft model alone, such as a missing residual, may need `draft`.",
}


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds on the mean shift in a set's probability that rounding may explain."""

    argmax: float = 0.0
    other: float = 0.0
    tokens: int = 0  # sample size of the measurement

    @classmethod
    def of_printed(cls, digit: float) -> "Band":
        """Return the band of logarithms that are rounded to a last digit; 0 = not rounded."""
        half = math.expm1(digit / 2)
        return cls(half, half)

    def of(self, alternative: int) -> Floats:
        """Return [D] bounds of one alternative: `argmax` for q's argmax and set 0, else `other`."""
        bounds = np.full(len(DIRECTIONS), self.other)
        bounds[[ARGMAX, DRAFT] if alternative == 0 else ARGMAX] = self.argmax
        return bounds


def band_between(pairs: Sequence[tuple[Columns, Columns]]) -> Band:
    """Return the band of shifts between two statements of the same distributions, in pairs.

    A bound is the mean over all rows and three standard errors, 0 without rows. `argmax` is of the
    shift of a row's likeliest key, `other` of the larger sum of its shifts of one sign. Keys of the
    first statement that the second lacks are left out, and rows whose likeliest key is one of them.
    """
    argmax, other = [], []
    for one, two in pairs:
        rows = zip(one.keys, one.mass, two.keys, two.mass, strict=False)
        for keys, mass, others, mass_of_others in rows:
            shift = dict(zip(keys, mass, strict=False))
            stated = dict(zip(others, mass_of_others, strict=False))
            shift = {key: p - stated[key] for key, p in shift.items() if key in stated}
            if keys and keys[0] in shift:
                argmax.append(abs(shift[keys[0]]))
                signed = [[x for x in shift.values() if s * x > 0] for s in (1, -1)]
                other.append(max(abs(sum(part)) for part in signed))
    return Band(mean_and_error(argmax), mean_and_error(other), len(argmax))


def price_of(taken: int, left: int) -> float:
    """Return the nats that a log e-value loses for `left` items left out (theorem 3); 0 of none."""
    total = math.lgamma(taken + left + 2) - math.lgamma(taken + 1) - math.lgamma(left + 1)
    return total if left else 0.0


def mean_and_error(shifts: Sequence[float]) -> float:
    """Return the mean of shifts plus three standard errors; 0 of no values."""
    values = np.array(shifts)
    return float(values.mean() + 3 * values.std() / np.sqrt(len(values))) if shifts else 0.0


class ServerAudit(MethodAudit):
    """The texts of one server, which may hide tokens, and the e-process against losslessness."""

    def __init__(
        self,
        name: str,
        rounding: Band = Band(),  # frozen
        level: float = LEVEL,
        *,
        draft: bool = False,
        hides: bool = False,
    ) -> None:
        alternatives: list[Alternative] = [Likeliest(), Followed(), Excess()]
        alternatives += [DraftPreferred()] if draft else []
        bands = [rounding.of(i) for i in range(len(alternatives))]
        super().__init__(name, alternatives, bands, level)
        self.hides, self._emitted = hides, set[str]()
        self.left_out: Counter[str] = Counter()  # texts by the reason why they are not audited
        self.unstated = 0  # tokens of audited texts of which nothing is stated
        self.unseen = 0  # tokens of texts that are left out

    def take_text(self, text: Columns) -> None:
        """Bet on a text, less the price of what is left out (theorem 3); note flaws in `broken`.

        An empty or flawed text only counts as one of `texts`, whose number seeds controls' draws.
        """
        if not len(text) or text.flaw:
            self.texts += 1
            self.broken += [text.flaw] if len(text) else []
            return
        rng = np.random.default_rng([self.texts + 1, len(text)])
        at = text.positions(self._visible(text))
        peak, self.unstated = self.peak, self.unstated + text.unstated
        self.take(evidence_of([at], self.alternatives, rng))
        self.peak = max(peak, float(self.curve[-1].max(initial=0.0)) - self._price)

    def leave_out(self, reason: str, tokens: int) -> None:
        """Count a text of so many tokens whose account does not balance."""
        self.left_out[reason] += 1
        self.unseen += tokens

    @property
    def unaudited(self) -> str:
        """Return how many texts are left out and the most frequent reasons; empty if none is."""
        reasons = (f"{count} x it {reason}" for reason, count in self.left_out.most_common(3))
        total = self.texts + self.left_out.total()
        lead = f"{self.left_out.total()} of {total} texts are left out"
        return f"{lead} ({', '.join(reasons)})" if self.left_out else ""

    @property
    def _looked_at(self) -> float:
        """Return the share of all tokens that bets look at."""
        return (self.tokens - self.unstated) / max(self.tokens + self.unseen, 1)

    @property
    def _price(self) -> float:
        texts = price_of(self.texts, self.left_out.total())
        return texts + price_of(self.tokens - self.unstated, self.unstated)

    @property
    def _level(self) -> float:
        """Return the level of one alternative, after the price of what was left out."""
        return max(self.level / len(self.bands) * math.exp(-self._price), sys.float_info.min)

    def claim(self) -> float | None:
        """Return the least bias, a share of all tokens, that is found with power 0.99; or None."""
        if not self._looked_at:
            return None
        claim = claimable(self.evidence(), self._level, self.bands[0])
        return claim / self._looked_at if claim and claim < self._looked_at else None

    def plant(self, bias: float) -> Control:
        """Plant a bias, a share of all tokens, in draws from the same distributions; audit them."""
        return inject(self.evidence(), bias * self._looked_at, self._level, self.bands[0])

    def _visible(self, text: Columns) -> Bits | None:
        """Return [n, k + 1] columns emitted at earlier tokens; note new ones. None: all visible."""
        n, width = text.mass.shape
        if not self.hides:
            return None
        visible = np.zeros((n, width + 1), np.bool_)
        for i, keys in enumerate(text.keys):
            visible[i, : len(keys)] = [key in self._emitted for key in keys]
            self._emitted.add(text.tokens[i])
        visible[:, :width] &= text.mass > 0
        return visible

    @property
    def leading_bet(self) -> str:
        """Return the bets with most of the capital, in words."""
        bets, _, direction = super().leading_bet.partition(" ")
        names = {"draft": self.alternatives[self.richest].name, "argmax": Likeliest.name}
        return f"{names.get(bets, bets)} ({direction})"

    @property
    def shares(self) -> list[Test]:
        """Return the observed and due share of each set, the tail and ends, but of certain ones."""
        sets = [(alternative.name, i, DRAFT) for i, alternative in enumerate(self.alternatives)]
        return [
            share_test(tokens, direction, name)
            for name, i, direction in [*sets, ("the tail", 0, TAIL), (END, 0, EOS)]
            if (mass := (tokens := self.evidence(i)).mass[:, direction]) @ (1 - mass) > 0
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values: counts, log10 of the e-value's peak, the shares of each set."""
        return {
            "name": self.name,
            "texts": self.texts,
            "tokens": self.tokens,
            "e_value_log10": self.peak / np.log(10),
            "alarmed": self.alarmed,
            "left_out": dict(self.left_out),
            "unstated": self.unstated,
            "sets": [
                {"set": d.direction, "observed": d.observed, "expected": d.expected, "z": d.z}
                for d in self.shares
            ],
        }


@dataclass(frozen=True, slots=True)
class SampledResult:
    """Result of the sequential test on sampled texts."""

    mode: Mode
    rounding: Band
    finding: Finding

    @property
    def left_out(self) -> Counter[str]:
        """Return the number of texts of the server that are left out, by reason."""
        audited = self.finding.audited
        return audited.left_out if isinstance(audited, ServerAudit) else Counter()

    @property
    def verdict(self) -> AuditVerdict:
        """Return the verdict on sampled texts, after the controls."""
        return self.finding.verdict

    @property
    def line(self) -> str:
        """Return the finding's line, after "bias" where there is one."""
        lead = "bias " if self.finding.shared else "bias: "
        lead = lead if self.verdict is AuditVerdict.BIAS else ""
        return f"{lead}{self.finding.line}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values: verdict, controls, band, and each server's figures (None: none)."""
        finding = self.finding
        return {
            "mode": self.mode,
            "verdict": self.verdict,
            "line": self.line,
            "bias_caught_with_probability_0.99": finding.claim,
            "control": asdict(finding.control) if finding.control else None,
            "band": asdict(self.rounding),
            "server": finding.audited.to_json(),
            "baseline": finding.plain.to_json() if finding.plain else None,
            "unseen": UNSEEN[self.mode],
        }

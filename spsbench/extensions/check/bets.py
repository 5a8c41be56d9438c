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

Where nothing is hidden, N is all tokens and q(N) = 1: the whole distribution is bet on. This may
begin with any text, as soon as the texts before it show that the server samples and lists its ends.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spsbench.audit.statistical.betting import (
    ARGMAX,
    DIRECTIONS,
    DRAFT,
    EOS,
    LEVEL,
    TAIL,
    Bits,
    Floats,
    lengths,
)
from spsbench.audit.statistical.finding import AuditVerdict, Finding, MethodAudit, Test, share
from spsbench.audit.statistical.positions import (
    Alternative,
    DraftPreferred,
    Excess,
    Followed,
    Likeliest,
    Positions,
    evidence_of,
)
from spsbench.serving.engines import Stated
from spsbench.serving.wire import UNLISTED

BY_ID = re.compile(r"#[0-9]++")  # keys that are ids, where an engine gives them
END = "end of text"  # the key of all tokens that end a text
NO_STRATUM = -1  # round boundaries are unknown from outside
EDGE = 0.05  # rounding tolerance: stated probabilities may exceed 1 by this mass


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
class Columns:
    """The known part of the distributions at n tokens of one text."""

    keys: list[list[str]]  # keys of the columns, likeliest first, each once in a row
    mass: Floats  # [n, k]; 0 in the padding of shorter rows
    emitted: NDArray[np.int64]  # [n] column of the emitted token; k = the rest
    tokens: list[str]  # keys of the emitted tokens
    drafted: Bits | None = None  # [n, k + 1] columns that a draft model prefers to the target
    flaw: str = ""  # why the statements are no probabilities

    def __len__(self) -> int:
        return len(self.emitted)

    def positions(self, visible: Bits | None) -> Positions:
        """Return what is known at each token; the last outcome is all tokens that are no column."""
        n, width = self.mass.shape
        probs = np.hstack([self.mass, np.clip(1 - self.mass.sum(1, keepdims=True), 0.0, 1.0)])
        argmax, ends, tail = (np.zeros(probs.shape, np.bool_) for _ in range(3))
        listed = np.ones(probs.shape, np.bool_) if visible is None else visible
        argmax[np.arange(n), listed[:, :width].argmax(1)] = listed[:, :width].any(1)
        tail[:, width] = width > 1
        for i, row in enumerate(self.keys):
            ends[i, : len(row)] = [key == END for key in row]
        return Positions(
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


def columns(stated: Sequence[Stated], tokens: Sequence[str], top: int) -> Columns:
    """Sort stated distributions of `top` likeliest tokens into columns; the emitted is beside."""
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


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds on the mean shift in a set's probability that rounding may explain."""

    argmax: float = 0.0
    other: float = 0.0
    tokens: int = 0  # sample size of the measurement

    def of(self, alternative: int) -> Floats:
        """Return the bounds [D] for the bets of one alternative."""
        bounds = np.full(len(DIRECTIONS), self.other)
        bounds[[ARGMAX, DRAFT] if alternative == 0 else ARGMAX] = self.argmax
        return bounds


def band_between(pairs: Sequence[tuple[Columns, Columns]]) -> Band:
    """Measure the difference between two statements of the same distributions, key by key."""
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


def mean_and_error(shifts: Sequence[float]) -> float:
    """Return a mean and three standard errors; 0 of no values."""
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

    def take_text(self, text: Columns) -> None:
        """Add one text."""
        if not len(text) or text.flaw:
            self.texts += 1
            self.broken += [text.flaw] if len(text) else []
            return
        rng = np.random.default_rng([self.texts + 1, len(text)])
        at = text.positions(self._visible(text))
        self.take(evidence_of([at], self.alternatives, rng))

    def _visible(self, text: Columns) -> Bits | None:
        """Return [n, k + 1] the columns known not to be hidden; None: nothing is hidden."""
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
        """Return the observed and the expected share of each set that is not certain."""
        sets = [(alternative.name, i, DRAFT) for i, alternative in enumerate(self.alternatives)]
        return [
            share(tokens, direction, name)
            for name, i, direction in [*sets, ("the tail", 0, TAIL), (END, 0, EOS)]
            if (mass := (tokens := self.evidence(i)).mass[:, direction]) @ (1 - mass) > 0
        ]

    def to_json(self) -> dict[str, Any]:
        """Return figures."""
        return {
            "name": self.name,
            "texts": self.texts,
            "tokens": self.tokens,
            "e_value_log10": self.peak / np.log(10),
            "alarmed": self.alarmed,
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
    def verdict(self) -> AuditVerdict:
        """Return the verdict on sampled texts, after the controls."""
        return self.finding.verdict

    @property
    def line(self) -> str:
        """Return the result in words."""
        lead = "bias " if self.finding.shared else "bias: "
        lead = lead if self.verdict is AuditVerdict.BIAS else ""
        return f"{lead}{self.finding.line}"

    def to_json(self) -> dict[str, Any]:
        """Return figures."""
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

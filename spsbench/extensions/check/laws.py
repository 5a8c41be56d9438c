"""Sequential test of a server's text against the distributions stated for its tokens.

The distributions come from the server, its baseline or the weights. For each token the likeliest
tokens (the columns) are known with their probabilities; all other tokens are the rest. The
e-process of `audit.statistical.betting` bets on sets of columns that depend on the prefix only: the
likeliest token, the tail, and three alternatives with a third of the capital each. The alternatives
are the likeliest token again, the token that followed the last occurrence (as prompt lookup
proposes), and the tokens that exceeded their expected counts so far, by rank, by token, and by
preceding token. The mean of the three is one nonnegative martingale, so the level holds for the
whole.

An engine may leave tokens H out of its texts, such as the end of a text, or never sample them
although it states their probabilities. So the bets are among the tokens N that are known not to be
in H: those that this server has emitted before (`VisibleTokens`). With S within N and
m = q(S) / q(N), a token x multiplies the capital by

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

What is a column and what is the rest stands in `columns`. `judged` gives the verdict on a server,
after the controls.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from spsbench.audit.statistical.audit import AuditArm, AuditVerdict, Test, judge_power, share
from spsbench.audit.statistical.betting import (
    ARGMAX,
    DIRECTIONS,
    DRAFT,
    EOS,
    LEVEL,
    REPEATS,
    TAIL,
    Bits,
    Control,
    Evidence,
    Floats,
    lengths,
)
from spsbench.extensions.check.columns import END, Columns

SUSPECTS = (
    "the likeliest token",
    "the token that followed last time",
    "tokens above their expected count",
    "tokens that the draft model prefers",  # if there is one
)
ALWAYS = 3  # suspects that need no draft model
NO_STRATUM = -1  # round boundaries are unknown from outside


class Mode(StrEnum):
    """Source of the distributions, strongest first."""

    WEIGHTS = "weights"
    BASELINE = "baseline"
    STATED = "stated"


WORDS = {
    Mode.WEIGHTS: "each token scored anew with the weights",
    Mode.BASELINE: "each token scored anew by the baseline, from its prompt logprobs",
    Mode.STATED: "each token against the probabilities that the server itself states",
}
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


class Excess:
    """Deviations of observed from expected counts, by key."""

    def __init__(self) -> None:
        self._cells: dict[Any, list[float]] = {}

    def __getitem__(self, key: Any) -> float:
        """Return the deviation so far, in standard errors that begin at 1."""
        came, expected = self._cells.get(key, (0.0, 0.0))
        return float((came - expected) / (expected + 1) ** 0.5)

    def add(self, key: Any, came: bool, expected: float) -> None:
        """Count one more trial."""
        cell = self._cells.setdefault(key, [0.0, 0.0])
        cell[0] += came
        cell[1] += expected


class VisibleTokens:
    """Tokens that a server is known not to hide: those that it emitted, or all if it hides none."""

    def __init__(self, *, hides: bool = False) -> None:
        self.hides, self._emitted = hides, set[str]()

    def of_text(self, text: Columns) -> Bits:
        """Return [n, k + 1] the columns that are visible, and whether the rest is."""
        n, width = text.mass.shape
        if not self.hides:
            return np.ones((n, width + 1), np.bool_)
        visible = np.zeros((n, width + 1), np.bool_)
        for i, keys in enumerate(text.keys):
            visible[i, : len(keys)] = [key in self._emitted for key in keys]
            self._emitted.add(text.tokens[i])
        visible[:, :width] &= text.mass > 0
        return visible


class Suspicion:
    """Columns favoured by each suspect at each token, from the prefix only."""

    def __init__(self) -> None:
        self._excess = Excess()

    def sets(self, text: Columns, visible: Bits, context: Sequence[str] = ()) -> list[Bits]:
        """Return the favoured columns [n, k + 1] of each suspect; `context` is the prompt keys."""
        n, width = text.mass.shape
        rows, first = np.arange(n), visible[:, :width].argmax(1)
        favoured = [np.zeros((n, width + 1), np.bool_) for _ in SUSPECTS[:ALWAYS]]
        favoured[0][rows, first] = visible[rows, first] & (text.mass[rows, first] > 0)
        whole = [*context, *text.tokens]
        followed: dict[tuple[str, ...], str] = {}
        for at in range(2, len(context)):
            followed[tuple(whole[at - 2 : at])] = whole[at]
        for i in range(n):
            at = len(context) + i
            pair = tuple(whole[at - 2 : at]) if at >= 2 else ()
            proposed = followed.get(pair)
            before = whole[at - 1] if at else ""
            cells = {
                j: (j, key, (before, key)) for j, key in enumerate(text.keys[i]) if visible[i, j]
            }
            for j, counted in cells.items():
                favoured[1][i, j] = text.keys[i][j] == proposed
                favoured[2][i, j] = sum(self._excess[cell] for cell in counted) > 0
            if visible[i, text.own[i]]:  # after all columns have their sets
                among = 1.0 if visible[i, width] else text.mass[i, visible[i, :width]].sum()
                for j, counted in cells.items():
                    for cell in counted:
                        expected = float(text.mass[i, j] / among)
                        self._excess.add(cell, bool(text.own[i] == j), expected)
            if pair:
                followed[pair] = whole[at]
        return favoured if text.drafted is None else [*favoured, text.drafted & visible]


def evidence(text: Columns, favoured: Bits, visible: Bits, rng: np.random.Generator) -> Evidence:
    """Sort the tokens of one text into the sets of a suspect, among the visible tokens."""
    n, width = text.mass.shape
    rows, whole = np.arange(n), visible[:, width]  # where the rest is visible, everything is
    unlisted = np.clip(1 - text.mass.sum(1, keepdims=True), 0.0, 1.0)
    law = np.hstack([text.mass, unlisted])
    law = law / law.sum(1, keepdims=True)
    listed = (law * visible)[:, :width].sum(1)
    settled = visible[rows, text.own]
    sets = np.zeros((n, len(DIRECTIONS), width + 1), np.bool_)
    sets[:, DRAFT] = favoured
    sets[rows, ARGMAX, visible[:, :width].argmax(1)] = visible[:, :width].any(1)
    sets[:, TAIL, width] = width > 1
    for i, row in enumerate(text.keys):
        if END in row:
            sets[i, EOS, row.index(END)] = visible[i, row.index(END)]
    among = np.where((whole | (listed == 0))[:, None], law, law * visible)
    among = among / np.where(whole | (listed == 0), 1.0, listed)[:, None]
    mass = np.einsum("nw,ndw->nd", among, sets).clip(0, 1)
    rest = law[:, width] * (width > 1)
    either = rest + listed
    mass[:, TAIL] = np.where(whole, mass[:, TAIL], rest / np.where(either > 0, either, 1))
    live = np.repeat(settled, 2 * len(DIRECTIONS)).reshape(n, len(DIRECTIONS), 2)
    live[:, TAIL, 0] |= (text.own == width) & (either > 0)
    live[:, TAIL, 1] &= whole
    mass *= live[:, :, 0]  # no spread where nothing is settled, so that controls skip it
    hit = sets[rows, :, text.own] & live[:, :, 0]
    inside = among * favoured
    within = np.where(inside.sum(1, keepdims=True) > 0, inside, among)
    return Evidence(
        hit=hit,
        mass=mass,
        pull=np.where(favoured.any(1) & settled, 1 - mass[:, DRAFT], 0.0),
        index=np.full(n, NO_STRATUM),
        length=lengths(n),
        drawn=_draws(among, sets, rng),
        favoured=_draws(within, sets, rng),
        live=live,
    )


def _draws(law: Floats, sets: Bits, rng: np.random.Generator) -> Bits:
    """Return the sets [R, n, D] of seeded draws."""
    n, width = law.shape
    cdf = law.cumsum(1)
    points = rng.random((REPEATS, n)) * cdf[:, -1]
    at = (points[:, :, None] > cdf[None]).sum(-1).clip(max=width - 1)
    return np.stack([sets[np.arange(n), :, at[r]] for r in range(REPEATS)])


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds on the mean shift in a set's probability that rounding may explain."""

    argmax: float = 0.0
    other: float = 0.0
    tokens: int = 0  # sample size of the measurement

    def of(self, suspect: int) -> Floats:
        """Return the bounds [D] for the bets of one suspect."""
        bounds = np.full(len(DIRECTIONS), self.other)
        bounds[ARGMAX] = self.argmax
        bounds[DRAFT] = self.argmax if suspect == 0 else self.other
        return bounds

    def widened(self, by: float) -> "Band":
        """Return the band widened by what the edge of a cut may move."""
        return Band(self.argmax + by, self.other + by, self.tokens)


def band_between(pairs: Sequence[tuple[Columns, Columns]]) -> Band:
    """Measure the difference between two statements of the same distributions, key by key."""
    argmax, other = [], []
    for one, two in pairs:
        for i in range(min(len(one), len(two))):
            a = dict(zip(one.keys[i], one.mass[i], strict=False))
            b = dict(zip(two.keys[i], two.mass[i], strict=False))
            shared = [a[key] - b[key] for key in a if key in b]
            if not shared or one.keys[i][0] not in b:
                continue
            argmax.append(abs(a[one.keys[i][0]] - b[one.keys[i][0]]))
            other.append(max(sum(x for x in shared if x > 0), -sum(x for x in shared if x < 0)))
    if not argmax:
        return Band()

    def mean(shifts: list[float]) -> float:
        values = np.array(shifts)
        return float(values.mean() + 3 * values.std() / np.sqrt(len(values)))

    return Band(mean(argmax), mean(other), len(argmax))


class ServerArm(AuditArm):
    """The texts of one server, which may hide tokens, and the e-process against losslessness."""

    def __init__(
        self,
        name: str,
        rounding: Band = Band(),  # frozen
        level: float = LEVEL,
        suspects: int = ALWAYS,
        *,
        hides: bool = False,
    ) -> None:
        super().__init__(name, [rounding.of(i) for i in range(suspects)], level)
        self.rounding, self.visible = rounding, VisibleTokens(hides=hides)
        self.broken: list[str] = []  # statements that are not probabilities
        self._suspicion = Suspicion()

    def take_text(self, text: Columns, context: Sequence[str] = ()) -> None:
        """Add one text; `context` is the keys of its prompt, if known."""
        if not len(text) or text.flaw:
            self.texts += 1
            self.broken += [text.flaw] if len(text) else []
            return
        rng = np.random.default_rng([self.texts + 1, len(text)])
        visible = self.visible.of_text(text)
        sets = self._suspicion.sets(text, visible, context)
        self.take([evidence(text, favoured, visible, rng) for favoured in sets])

    @property
    def loudest(self) -> str:
        """Return the bets with most of the capital, in words."""
        bets, _, direction = super().loudest.partition(" ")
        names = {"draft": SUSPECTS[self.richest], "argmax": "the likeliest token"}
        return f"{names.get(bets, bets)} ({direction})"

    @property
    def deviations(self) -> list[Test]:
        """Return the observed and the expected share of each set that is not certain."""
        of_suspects = [(name, i, DRAFT) for i, name in enumerate(SUSPECTS[: len(self.bands)])]
        deviations = []
        for name, suspect, direction in [*of_suspects, ("the tail", 0, TAIL), (END, 0, EOS)]:
            tokens = self.evidence(suspect)
            mass = tokens.mass[:, direction]
            if (mass * (1 - mass)).sum() > 0:
                everywhere = np.ones(len(tokens), np.bool_)
                deviations.append(share(tokens, direction, name, "all", everywhere))
        return deviations

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
                for d in self.deviations
            ],
        }


@dataclass(kw_only=True)
class LawResult:
    """Result of the sequential test on sampled texts."""

    mode: Mode
    verdict: AuditVerdict
    line: str
    server: ServerArm
    baseline: ServerArm | None
    claim: float | None
    control: Control | None

    def to_json(self) -> dict[str, Any]:
        """Return figures."""
        return {
            "mode": self.mode,
            "words": WORDS[self.mode],
            "verdict": self.verdict,
            "line": self.line,
            "bias_caught_with_probability_0.99": self.claim,
            "control": asdict(self.control) if self.control else None,
            "band": asdict(self.server.rounding),
            "server": self.server.to_json(),
            "baseline": self.baseline.to_json() if self.baseline else None,
            "unseen": UNSEEN[self.mode],
        }


def judged(
    mode: Mode, server: ServerArm, base: ServerArm | None, claim: float | None, bias: float
) -> LawResult:
    """Return the verdict on sampled texts, after the controls."""
    control = server.plant(claim) if claim and not server.alarmed else None

    result = partial(
        LawResult, mode=mode, server=server, baseline=base, claim=claim, control=control
    )
    for arm, where in ((base, " in the baseline already"), (server, "")):
        if arm is not None and arm.broken:
            line = f"{arm.broken[0]}{where}: no probabilities to bet on"
            return result(verdict=AuditVerdict.UNKNOWN, line=line)
        if arm is not None and arm.alarmed:
            return result(verdict=AuditVerdict.BIAS, line=f"bias{where}: {described(arm)}")
    powerful, line = judge_power(claim, control, bias)
    return result(verdict=AuditVerdict.HELD if powerful else AuditVerdict.UNKNOWN, line=line)


def described(arm: ServerArm) -> str:
    """Describe the set with the largest deviation of an arm."""
    worst = max(arm.deviations, key=lambda deviation: abs(deviation.z))
    return (
        f"e-value 10^{arm.peak / np.log(10):.1f} after {arm.tokens} tokens, alarm at "
        f"10^{-np.log10(arm.level):.0f}; most of it on {arm.loudest}; {worst.direction}: "
        f"{worst.observed:.3f} of the tokens where {worst.expected:.3f} are due "
        f"(bias {worst.bias:+.3f}, z = {worst.z:.1f})"
    )

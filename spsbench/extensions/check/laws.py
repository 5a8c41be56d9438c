"""Sequential test of a server's text against the distributions stated for its tokens.

The distributions come from the server, its baseline or the weights. For each token the likeliest
tokens (the columns) are known with their probabilities; all other tokens are the rest. The
e-process of `audit.statistical.betting` bets on sets of columns that depend on the prefix only: the
likeliest token, the tail, and three suspects with a third of the capital each. The suspects are the
likeliest token again, the token that followed the last occurrence (as prompt lookup proposes), and
the tokens that exceeded their expected counts so far, by rank, by token, and by preceding token.
The mean of the three is one nonnegative martingale, so the level holds for the whole.

What is a column and what is the rest stands in `columns`. `judged` gives the verdict on a server,
after the controls.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
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
from spsbench.extensions.check.plan import Plan

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


class Suspicion:
    """Columns favoured by each suspect at each token, from the prefix only."""

    def __init__(self) -> None:
        self._excess = Excess()

    def sets(self, text: Columns, context: Sequence[str] = ()) -> list[Bits]:
        """Return the favoured columns [n, k + 1] of each suspect; `context` is the prompt keys."""
        n, width = text.mass.shape
        favoured = [np.zeros((n, width + 1), np.bool_) for _ in SUSPECTS[:ALWAYS]]
        favoured[0][:, 0] = text.mass[:, 0] > 0
        whole = [*context, *text.tokens]
        followed: dict[tuple[str, ...], str] = {}
        for at in range(2, len(context)):
            followed[tuple(whole[at - 2 : at])] = whole[at]
        for i in range(n):
            at = len(context) + i
            pair = tuple(whole[at - 2 : at]) if at >= 2 else ()
            proposed = followed.get(pair)
            before = whole[at - 1] if at else ""
            cells = [(j, key, (before, key)) for j, key in enumerate(text.keys[i])]
            for j, key in enumerate(text.keys[i]):
                favoured[1][i, j] = key == proposed
                favoured[2][i, j] = sum(self._excess[cell] for cell in cells[j]) > 0
            for j, counted in enumerate(cells):  # after all columns have their sets
                for cell in counted:
                    self._excess.add(cell, bool(text.own[i] == j), float(text.mass[i, j]))
            if pair:
                followed[pair] = whole[at]
        return favoured if text.drafted is None else [*favoured, text.drafted]


def evidence(text: Columns, favoured: Bits, rng: np.random.Generator) -> Evidence:
    """Sort the tokens of one text into the sets of a suspect."""
    n, width = text.mass.shape
    unlisted = np.clip(1 - text.mass.sum(1, keepdims=True), 0.0, 1.0)
    law = np.hstack([text.mass, unlisted])
    law = law / law.sum(1, keepdims=True)
    sets = np.zeros((n, len(DIRECTIONS), width + 1), np.bool_)
    sets[:, DRAFT] = favoured
    sets[:, ARGMAX, 0] = True
    sets[:, TAIL, width] = width > 1
    for i, row in enumerate(text.keys):
        if END in row:
            sets[i, EOS, row.index(END)] = True
    mass = np.einsum("nw,ndw->nd", law, sets).clip(0, 1)
    drawn = _draws(law, sets, rng)
    inside = law * favoured
    within = np.where(inside.sum(1, keepdims=True) > 0, inside, law)
    return Evidence(
        hit=sets[np.arange(n), :, text.own],
        mass=mass,
        pull=np.where(favoured.any(1), 1 - mass[:, DRAFT], 0.0),
        index=np.full(n, NO_STRATUM),
        length=lengths(n),
        drawn=drawn,
        favoured=_draws(within, sets, rng),
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
        """Return the band widened for the ends of texts."""
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
    """The texts of one server and the e-process against its losslessness."""

    def __init__(
        self,
        name: str,
        rounding: Band = Band(),  # frozen
        level: float = LEVEL,
        suspects: int = ALWAYS,
    ) -> None:
        super().__init__(name, [rounding.of(i) for i in range(suspects)], level)
        self.rounding = rounding
        self.broken: list[str] = []  # statements that are not probabilities
        self._suspicion = Suspicion()

    def take_text(self, text: Columns, context: Sequence[str] = ()) -> None:
        """Add one text; `context` is the keys of its prompt, if known."""
        if not len(text) or text.flaw:
            self.texts += 1
            self.broken += [text.flaw] if len(text) else []
            return
        rng = np.random.default_rng([self.texts + 1, len(text)])
        sets = self._suspicion.sets(text, context)
        self.take([evidence(text, favoured, rng) for favoured in sets])

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


def grown(
    arm: ServerArm | None, name: str, texts: Sequence[Columns], band: Band, ends: int, plan: Plan
) -> ServerArm:
    """Update the test with the texts of a server that are not in `arm` yet.

    A text may end with a token that its engine does not list. The other tokens then exceed their
    stated probabilities by the probability of an end, which is added to the band, and the test
    restarts.
    """
    tokens = sum(map(len, texts))
    share = ends / tokens if tokens else 0.0
    wide = band.widened(share + 3 * (share / tokens) ** 0.5 if share else 0.0)
    if arm is None or arm.rounding != wide:
        arm = ServerArm(name, wide, plan.level, len(SUSPECTS) if plan.draft else ALWAYS)
    for text in texts[arm.texts :]:
        arm.take_text(text)
    return arm


def judged(
    mode: Mode, server: ServerArm, base: ServerArm | None, claim: float | None, bias: float
) -> LawResult:
    """Return the verdict on sampled texts, after the controls."""
    control = server.plant(claim) if claim and not server.alarmed else None

    def result(verdict: AuditVerdict, line: str) -> LawResult:
        return LawResult(
            mode=mode,
            verdict=verdict,
            line=line,
            server=server,
            baseline=base,
            claim=claim,
            control=control,
        )

    for arm, where in ((base, " in the baseline already"), (server, "")):
        if arm is not None and arm.broken:
            return result(
                AuditVerdict.UNKNOWN, f"{arm.broken[0]}{where}: no probabilities to bet on"
            )
        if arm is not None and arm.alarmed:
            return result(AuditVerdict.BIAS, f"bias{where}: {described(arm)}")
    powerful, line = judge_power(claim, control, bias)
    return result(AuditVerdict.HELD if powerful else AuditVerdict.UNKNOWN, line)


def described(arm: ServerArm) -> str:
    """Describe the set with the largest deviation of an arm."""
    worst = max(arm.deviations, key=lambda deviation: abs(deviation.z))
    return (
        f"e-value 10^{arm.peak / np.log(10):.1f} after {arm.tokens} tokens, alarm at "
        f"10^{-np.log10(arm.level):.0f}; most of it on {arm.loudest}; {worst.direction}: "
        f"{worst.observed:.3f} of the tokens where {worst.expected:.3f} are due "
        f"(bias {worst.bias:+.3f}, z = {worst.z:.1f})"
    )

"""An audit: the evidence of two arms, the e-process against each, and the verdict."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import (
    DIRECTIONS,
    INDEX_STRATA,
    LENGTH_STRATA,
    LEVEL,
    NO_BAND,
    Control,
    Evidence,
    Floats,
    Wealth,
    alarm,
    claimable,
    inject,
)
from spsbench.audit.statistical.examine import Impossible

POINTS = 400  # points of a stored curve


class AuditVerdict(StrEnum):
    """Outcome of an audit."""

    HELD = "held"
    BIAS = "bias found"
    NOT_VALID = "not valid"


@dataclass
class AuditArm:
    """The tokens of one method, in order."""

    name: str
    band: Floats
    level: float = LEVEL
    texts: int = 0
    parts: list[Evidence] = field(default_factory=list)
    impossible: list[Impossible] = field(default_factory=list)
    curve: list[Floats] = field(default_factory=list)  # logarithm of the e-value, token by token

    def __post_init__(self) -> None:
        self.money = Wealth(self.band)
        self.tokens = 0

    def take(self, evidence: Evidence, impossible: Sequence[Impossible]) -> None:
        """Add one text."""
        self.texts += 1
        self.tokens += len(evidence)
        self.parts.append(evidence)
        self.impossible += impossible
        self.curve.append(self.money.take(evidence))

    @property
    def alarmed(self) -> bool:
        """Return whether this arm alarms: its law is not the target's."""
        return bool(self.impossible) or self.money.peak >= alarm(self.level)

    @property
    def evidence(self) -> Evidence:
        """Return the evidence of all texts."""
        self.parts = [Evidence.joined(self.parts)]
        return self.parts[0]

    def thinned(self) -> list[tuple[int, float]]:
        """Return (tokens, log10 of the e-value) at some `POINTS`, the last and the maximum."""
        whole = np.concatenate([np.zeros(1), *self.curve]) / np.log(10)
        at = np.linspace(0, len(whole) - 1, min(POINTS, len(whole))).astype(int)
        at = np.union1d(at, [int(whole.argmax())])
        return [(int(i), float(whole[i])) for i in at]


@dataclass(frozen=True, slots=True)
class Test:
    """Observed and expected share of one direction in one stratum; the e-process alone decides."""

    direction: str
    stratum: str
    tokens: int
    observed: float  # share of tokens in the set
    expected: float  # by the target's law
    z: float

    @property
    def bias(self) -> float:
        """Return the excess of the observed share."""
        return self.observed - self.expected


def tests(evidence: Evidence) -> list[Test]:
    """Return each direction over all tokens, then the draft direction by stratum."""
    everywhere = np.ones(len(evidence), np.bool_)
    made = [_test(evidence, d, "all", everywhere) for d in range(len(DIRECTIONS))]
    for names, strata in (
        (INDEX_STRATA, evidence.index),
        (LENGTH_STRATA, evidence.length),
    ):
        made += [_test(evidence, 0, name, strata == i) for i, name in enumerate(names)]
    return [test for test in made if test.tokens]


def _test(evidence: Evidence, d: int, stratum: str, where: np.ndarray) -> Test:
    hit, mass = evidence.hit[where, d], evidence.mass[where, d]
    n = len(mass)
    if n == 0:
        return Test(DIRECTIONS[d], stratum, 0, 0.0, 0.0, 0.0)
    variance = float((mass * (1 - mass)).sum())
    excess = float((hit - mass).sum())
    z = excess / variance**0.5 if variance > 0 else 0.0
    return Test(DIRECTIONS[d], stratum, n, float(hit.mean()), float(mass.mean()), z)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of an audit, with its controls."""

    verdict: AuditVerdict
    line: str
    claim: float | None  # least bias that has power 0.99
    control: Control | None
    level: float
    sps: AuditArm
    ars: AuditArm
    seconds: float
    shared: bool = False  # the plain arm is biased as well


class Audit:
    """Two arms, whose verdict can be evaluated at any time."""

    def __init__(
        self, band: Floats = NO_BAND, level: float = LEVEL, bias: float | None = None
    ) -> None:
        self.bias, self.level, self.band = bias, level, band
        self.ars, self.sps = AuditArm("ArS", band, level), AuditArm("SpS", band, level)
        self._tried = 0
        self._claim: float | None = None

    def claim(self) -> float | None:
        """Return the least detectable bias of the SpS arm; recomputed when the arm has grown."""
        if self.sps.tokens > 1.1 * self._tried:
            self._tried = self.sps.tokens
            self._claim = claimable(self.sps.evidence, self.level, self.band)
        return self._claim

    @property
    def decided(self) -> bool:
        """Return whether more tokens would not change the verdict."""
        if self.sps.alarmed or self.ars.alarmed:
            return True
        claim = self.claim() if self.bias is not None else None
        return claim is not None and self.bias is not None and claim <= self.bias

    def finding(self, seconds: float, *, trusted: bool = True) -> Finding:
        """Return the verdict. `trusted`: an independent scorer, if used, agrees with the scorer."""
        if self.sps.tokens > self._tried:
            self._tried = 0
        claim = self.claim()
        control = inject(self.sps.evidence, claim, self.level, self.band) if claim else None
        verdict, line = self._judged(claim, control, trusted)
        length = f"{self.sps.tokens:,} tokens of {self.sps.name} and {self.ars.tokens:,} of "
        return Finding(
            verdict=verdict,
            line=f"{line} ({length}{self.ars.name}, {seconds:.0f} s)",
            claim=claim,
            control=control,
            level=self.level,
            sps=self.sps,
            ars=self.ars,
            seconds=seconds,
            shared=self.ars.alarmed,
        )

    def _judged(
        self, claim: float | None, control: Control | None, trusted: bool
    ) -> tuple[AuditVerdict, str]:
        if (self.ars.alarmed or self.sps.alarmed) and not trusted:
            why = "an alarm, but transformers' own laws are not the scorer's"
            return AuditVerdict.NOT_VALID, f"not valid: {why}"
        if self.ars.alarmed:
            what = described(self.ars)
            return AuditVerdict.BIAS, f"BIAS FOUND, in plain sampling (ArS) already: {what}"
        if self.sps.alarmed:
            return AuditVerdict.BIAS, f"BIAS FOUND: {described(self.sps)}"
        if claim is None or control is None:
            return AuditVerdict.NOT_VALID, "not valid: too few tokens to see any bias"
        if not control.passed:
            why = f"a bias of {claim:.3g} was caught in {control.caught} of {control.repeats}"
            return AuditVerdict.NOT_VALID, f"not valid: {why} repeats"
        if self.bias is not None and claim > self.bias:
            why = f"too few tokens for a bias of {self.bias:g}, enough for {claim:.2g}"
            return AuditVerdict.NOT_VALID, f"not valid: {why}"
        line = f"would have caught a bias of {claim:.2g} or more with probability 0.99; found none"
        return AuditVerdict.HELD, line


def described(arm: AuditArm) -> str:
    """Describe the test that found an arm biased."""
    if arm.impossible:
        first = arm.impossible[0]
        return (
            f"{len(arm.impossible)} impossible tokens, the first {first.token} at position "
            f"{first.position} of {first.text or 'a text'}: {first.reason}"
        )
    money = arm.money.peak / np.log(10)
    draft = tests(arm.evidence)[0]
    return (
        f"e-value 10^{money:.1f}, alarm at 10^{-np.log10(arm.level):.1f}; most of it on "
        f"{arm.money.loudest}; draft direction off by {draft.bias:+.3f} (z = {draft.z:.1f})"
    )


SHOWN = 20  # impossible tokens in the list


def of_finding(found: Finding) -> dict[str, Any]:
    """Return a sampled audit as plain values for JSON."""
    return {
        "verdict": found.verdict.value,
        "line": found.line,
        "level": found.level,
        "alarm_log10": alarm(found.level) / math.log(10),
        "bias_caught_with_probability_0.99": found.claim,
        "bias_in_plain_sampling": found.shared,
        "controls": {
            "ars": of_arm(found.ars),
            "injected": asdict(found.control) if found.control else None,
        },
        "sps": of_arm(found.sps),
        "seconds": found.seconds,
    }


def of_arm(arm: AuditArm) -> dict[str, Any]:
    """Return the values of one method."""
    return {
        "name": arm.name,
        "texts": arm.texts,
        "tokens": arm.tokens,
        "alarmed": arm.alarmed,
        "e_value_log10": arm.money.peak / math.log(10),
        "loudest": arm.money.loudest if arm.tokens else None,
        "band": arm.band.tolist(),
        "tests": [asdict(test) | {"bias": test.bias} for test in tests(arm.evidence)],
        "impossible": [asdict(each) for each in arm.impossible[:SHOWN]],
        "impossible_count": len(arm.impossible),
        "curve": arm.thinned(),
    }

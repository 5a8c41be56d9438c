"""An audit: the evidence of two arms, the e-process against each, and the verdict."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import (
    DIRECTIONS,
    DRAFT,
    INDEX_STRATA,
    LENGTH_STRATA,
    LEVEL,
    NO_BAND,
    Bits,
    Control,
    Evidence,
    Floats,
    Wealth,
    alarm,
    claimable,
    inject,
    total,
)

POINTS = 400  # points of a stored curve


class AuditVerdict(StrEnum):
    """Outcome of an audit of a pair or of a server."""

    HELD = "held"
    BIAS = "bias found"
    NOT_VALID = "not valid"  # of a pair: a control failed, or there were too few tokens
    UNKNOWN = "cannot be told"  # of a server: what it gives does not decide
    NOT_AUDITED = "not audited"  # by the choice of the user


@dataclass(frozen=True, slots=True)
class Impossible:
    """A token that has probability 0 under the target."""

    text: str
    position: int  # in the output
    token: int
    before: tuple[int, ...]  # the newest tokens of the prefix
    reason: str


class AuditArm:
    """The tokens of one method or server, in order, and the e-process against its law.

    Each suspect has an equal share of the capital: the mean of the suspects' e-processes is one
    nonnegative martingale, so that the level holds for the whole.

    Args:
        name: shown in results.
        bands: [D] for each suspect, the bias that rounding may explain.
        level: probability of a false alarm.
    """

    def __init__(self, name: str, bands: Sequence[Floats], level: float = LEVEL) -> None:
        self.name, self.bands, self.level = name, bands, level
        self.wealths = [Wealth(band) for band in bands]
        self.texts = self.tokens = 0
        self.peak = 0.0  # largest logarithm of the e-value
        self.impossible: list[Impossible] = []
        self.curve: list[Floats] = []  # logarithm of the e-value, token by token
        self._parts: list[list[Evidence]] = [[] for _ in bands]

    def take(self, parts: Sequence[Evidence], impossible: Sequence[Impossible] = ()) -> None:
        """Add one text: its evidence for each suspect, and its impossible tokens."""
        self.texts += 1
        self.tokens += len(parts[0])
        self.impossible += impossible
        paths = []
        for wealth, collected, part in zip(self.wealths, self._parts, parts, strict=True):
            collected.append(part)
            paths.append(wealth.take(part))
        path = np.logaddexp.reduce(np.stack(paths)) - np.log(len(paths))
        self.peak = max(self.peak, float(path.max(initial=0.0)))
        self.curve.append(path)

    @property
    def alarmed(self) -> bool:
        """Return whether this arm alarms: its law is not the target's."""
        return bool(self.impossible) or self.peak >= alarm(self.level)

    @property
    def loudest(self) -> str:
        """Return the bets with most of the capital."""
        return self.wealths[self.richest].loudest

    @property
    def richest(self) -> int:
        """Return the number of the suspect with most of the capital."""
        return int(np.argmax([total(wealth.logs) for wealth in self.wealths]))

    def evidence(self, suspect: int = 0) -> Evidence:
        """Return the evidence of all texts for one suspect."""
        self._parts[suspect] = [Evidence.joined(self._parts[suspect])]
        return self._parts[suspect][0]

    def claim(self) -> float | None:
        """Return the least bias towards the first suspect that is found with probability 0.99."""
        return claimable(self.evidence(), self.level / len(self.bands), self.bands[0])

    def plant(self, bias: float) -> Control:
        """Plant a bias of size `bias` in draws from the same laws, and audit them."""
        return inject(self.evidence(), bias, self.level / len(self.bands), self.bands[0])

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
    results = [share(evidence, d, name, "all", everywhere) for d, name in enumerate(DIRECTIONS)]
    for names, strata in (
        (INDEX_STRATA, evidence.index),
        (LENGTH_STRATA, evidence.length),
    ):
        results += [
            share(evidence, DRAFT, DIRECTIONS[DRAFT], name, strata == i)
            for i, name in enumerate(names)
        ]
    return [test for test in results if test.tokens]


def share(evidence: Evidence, d: int, name: str, stratum: str, where: Bits) -> Test:
    """Return the share of the tokens `where` in the set of direction `d`, under a name."""
    hit, mass = evidence.hit[where, d], evidence.mass[where, d]
    n = len(mass)
    if n == 0:
        return Test(name, stratum, 0, 0.0, 0.0, 0.0)
    variance = float((mass * (1 - mass)).sum())
    excess = float((hit - mass).sum())
    z = excess / variance**0.5 if variance > 0 else 0.0
    return Test(name, stratum, n, float(hit.mean()), float(mass.mean()), z)


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
        self.bias, self.level = bias, level
        self.ars, self.sps = AuditArm("ArS", [band], level), AuditArm("SpS", [band], level)
        self._tried = 0
        self._claim: float | None = None

    def claim(self) -> float | None:
        """Return the least detectable bias of the SpS arm; recomputed when the arm has grown."""
        if self.sps.tokens > 1.1 * self._tried:
            self._tried = self.sps.tokens
            self._claim = self.sps.claim()
        return self._claim

    @property
    def decided(self) -> bool:
        """Return whether more tokens would not change the verdict."""
        if self.sps.alarmed or self.ars.alarmed:
            return True
        return self.bias is not None and (claim := self.claim()) is not None and claim <= self.bias

    def finding(self, seconds: float, doubt: str = "") -> Finding:
        """Return the verdict; `doubt` is why the scorer's laws may be wrong."""
        if self.sps.tokens > self._tried:
            self._tried = 0
        claim = self.claim()
        control = self.sps.plant(claim) if claim else None
        verdict, line = self._judged(claim, control, doubt)
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
        self, claim: float | None, control: Control | None, doubt: str
    ) -> tuple[AuditVerdict, str]:
        if (self.ars.alarmed or self.sps.alarmed) and doubt:
            return AuditVerdict.NOT_VALID, f"not valid: an alarm, but {doubt}"
        if self.ars.alarmed:
            what = described(self.ars)
            return AuditVerdict.BIAS, f"BIAS FOUND, in plain sampling (ArS) already: {what}"
        if self.sps.alarmed:
            return AuditVerdict.BIAS, f"BIAS FOUND: {described(self.sps)}"
        powerful, line = judge_power(claim, control, self.bias)
        if not powerful:
            return AuditVerdict.NOT_VALID, f"not valid: {line}"
        return AuditVerdict.HELD, line


def judge_power(
    claim: float | None, control: Control | None, bias: float | None
) -> tuple[bool, str]:
    """Return whether an audit without an alarm could have seen a bias, and the line that says it.

    Args:
        claim: least bias that is found with probability 0.99, if there is one.
        control: audits of texts with a planted bias of that size.
        bias: the size that the audit was asked to find, if any.
    """
    if claim is None or control is None:
        return False, "too few tokens, or laws too sure, to see any bias"
    if not control.passed:
        caught = f"{control.caught} of {control.repeats}"
        return False, f"a planted bias of {claim:.2g} was caught in {caught} only"
    if bias is not None and claim > bias:
        return False, f"too few tokens for a bias of {bias:g}, enough for {claim:.2g}"
    return (
        True,
        f"would have caught a bias of {claim:.2g} or more with probability 0.99; found none",
    )


def described(arm: AuditArm) -> str:
    """Describe the test that found an arm biased."""
    if arm.impossible:
        first = arm.impossible[0]
        return (
            f"{len(arm.impossible)} impossible tokens, the first {first.token} at position "
            f"{first.position} of {first.text or 'a text'}: {first.reason}"
        )
    money = arm.peak / np.log(10)
    draft = tests(arm.evidence())[0]
    return (
        f"e-value 10^{money:.1f}, alarm at 10^{-np.log10(arm.level):.1f}; most of it on "
        f"{arm.loudest}; draft direction off by {draft.bias:+.3f} (z = {draft.z:.1f})"
    )


SHOWN = 20  # impossible tokens in the list


def of_finding(finding: Finding) -> dict[str, Any]:
    """Return a sampled audit as plain values for JSON."""
    return {
        "verdict": finding.verdict.value,
        "line": finding.line,
        "level": finding.level,
        "alarm_log10": alarm(finding.level) / math.log(10),
        "bias_caught_with_probability_0.99": finding.claim,
        "bias_in_plain_sampling": finding.shared,
        "controls": {
            "ars": of_arm(finding.ars),
            "injected": asdict(finding.control) if finding.control else None,
        },
        "sps": of_arm(finding.sps),
        "seconds": finding.seconds,
    }


def of_arm(arm: AuditArm) -> dict[str, Any]:
    """Return the values of one method."""
    return {
        "name": arm.name,
        "texts": arm.texts,
        "tokens": arm.tokens,
        "alarmed": arm.alarmed,
        "e_value_log10": arm.peak / math.log(10),
        "loudest": arm.loudest if arm.tokens else None,
        "band": arm.bands[0].tolist(),
        "tests": [asdict(test) | {"bias": test.bias} for test in tests(arm.evidence())],
        "impossible": [asdict(token) for token in arm.impossible[:SHOWN]],
        "impossible_count": len(arm.impossible),
        "curve": arm.thinned(),
    }

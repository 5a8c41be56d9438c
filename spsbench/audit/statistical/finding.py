"""An audit: the texts of two methods, the e-process against each, and the verdict."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
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
    EProcess,
    Evidence,
    Floats,
    alarm,
    claimable,
    inject,
    total,
)
from spsbench.audit.statistical.positions import Alternative

POINTS = 400  # points of a stored curve
SHOWN = 20  # impossible tokens in the list
TWO_DIGITS_UP = Context(prec=2, rounding=ROUND_CEILING)


def format_claim(bias: float) -> str:
    """Format a detectable bias in two digits, rounded up: one that is smaller may be missed."""
    return f"{float(TWO_DIGITS_UP.create_decimal(str(bias))):g}"


class AuditVerdict(StrEnum):
    """Outcome of an audit of a pair or of a server."""

    HELD = "held"
    BIAS = "bias found"
    NOT_VALID = "not valid"  # a pair: a control failed, or there were too few tokens
    UNKNOWN = "cannot be decided"  # a server: what it gives does not decide
    NOT_AUDITED = "not audited"  # by the choice of the user


LEADS = {  # beginning of the line of a verdict
    AuditVerdict.HELD: "",
    AuditVerdict.BIAS: "BIAS FOUND: ",
    AuditVerdict.NOT_VALID: "not valid: ",
    AuditVerdict.UNKNOWN: "cannot be decided: ",
}


@dataclass(frozen=True, slots=True)
class Impossible:
    """A token that has probability 0 under the target."""

    text: str
    position: int  # in the output
    token: int
    before: tuple[int, ...]  # the newest tokens of the prefix
    reason: str


@dataclass(frozen=True, slots=True)
class Test:
    """Observed and expected share of one direction in one stratum; the e-process alone decides."""

    direction: str
    stratum: str
    tokens: int
    observed: float  # share of tokens in the set
    expected: float  # by the target's distribution
    z: float

    @property
    def bias(self) -> float:
        """Return the excess of the observed share."""
        return self.observed - self.expected


def share_test(
    evidence: Evidence, d: int, name: str, stratum: str = "all", where: Bits | slice = slice(None)
) -> Test:
    """Return set `d`'s share, seen and due, over 1+ tokens `where`, live or not; z: 0 if sure."""
    hit, mass = evidence.hit[where, d], evidence.mass[where, d]
    variance = float((mass * (1 - mass)).sum())
    excess = float((hit - mass).sum())
    z = excess / variance**0.5 if variance > 0 else 0.0
    return Test(name, stratum, len(mass), float(hit.mean()), float(mass.mean()), z)


class MethodAudit:
    """The tokens of one method or server, in order, and the e-process against its distribution.

    Each alternative, a fault to bet on, has an equal share of the capital: the mean of their
    e-processes is one nonnegative martingale, so that the level (probability of a false alarm)
    holds for the whole. `bands` [D] are for each alternative the bias that rounding may explain.
    """

    def __init__(
        self,
        name: str,
        alternatives: Sequence[Alternative],
        bands: Sequence[Floats] = (),
        level: float = LEVEL,
    ) -> None:
        self.name, self.alternatives, self.level = name, alternatives, level
        self.bands = bands or [NO_BAND for _ in alternatives]
        self.processes = [EProcess(band) for band in self.bands]
        self.texts = self.tokens = 0
        self.peak = 0.0  # largest logarithm of the e-value
        self.impossible: list[Impossible] = []
        self.broken: list[str] = []  # statements of a server that are no probabilities
        self.curve: list[Floats] = []  # logarithm of the e-value, token by token
        self._parts: list[list[Evidence]] = [[] for _ in alternatives]

    def take(self, parts: Sequence[Evidence], impossible: Sequence[Impossible] = ()) -> None:
        """Add one text by its evidence for each alternative, in order; note impossible tokens."""
        self.texts += 1
        self.tokens += len(parts[0])
        self.impossible += impossible
        paths = []
        for process, collected, part in zip(self.processes, self._parts, parts, strict=True):
            collected.append(part)
            paths.append(process.take(part))
        path = np.logaddexp.reduce(np.stack(paths)) - np.log(len(paths))
        self.peak = max(self.peak, float(path.max(initial=0.0)))
        self.curve.append(path)

    @property
    def alarmed(self) -> bool:
        """Return whether the method alarms: its distribution is not the target's."""
        return bool(self.impossible) or self.peak >= alarm(self.level)

    @property
    def leading_bet(self) -> str:
        """Return the bets with most of the capital, in words."""
        return self.processes[self.richest].leading_bet

    @property
    def richest(self) -> int:
        """Return the number of the alternative with most of the capital."""
        return int(np.argmax([total(process.logs) for process in self.processes]))

    def evidence(self, alternative: int = 0) -> Evidence:
        """Return the evidence of all texts for one alternative."""
        self._parts[alternative] = [Evidence.joined(self._parts[alternative])]
        return self._parts[alternative][0]

    def claim(self) -> float | None:
        """Return the least bias towards the first alternative found with power 0.99; or None."""
        return claimable(self.evidence(), self.level / len(self.bands), self.bands[0])

    def plant(self, bias: float) -> Control:
        """Plant a bias of size `bias` in draws from the same distributions, and audit them."""
        return inject(self.evidence(), bias, self.level / len(self.bands), self.bands[0])

    def thinned(self) -> list[tuple[int, float]]:
        """Return (tokens, log10 of the e-value) at some `POINTS`, the last and the maximum."""
        whole = np.concatenate([np.zeros(1), *self.curve]) / np.log(10)
        at = np.linspace(0, len(whole) - 1, min(POINTS, len(whole))).astype(int)
        at = np.union1d(at, [int(whole.argmax())])
        return [(int(i), float(whole[i])) for i in at]

    @property
    def shares(self) -> list[Test]:
        """Return observed and expected shares of the tokens for the first alternative.

        By direction, then of the draft direction by stratum of index and length; no empty ones.
        """
        tokens = self.evidence()
        if not len(tokens):
            return []
        return [share_test(tokens, d, name) for d, name in enumerate(DIRECTIONS)] + [
            share_test(tokens, DRAFT, DIRECTIONS[DRAFT], stratum, strata == i)
            for names, strata in ((INDEX_STRATA, tokens.index), (LENGTH_STRATA, tokens.length))
            for i, stratum in enumerate(names)
            if (strata == i).any()
        ]

    @property
    def alarm_line(self) -> str:
        """Describe an alarm: the first impossible token, else e-value and largest deviation."""
        if self.impossible:
            first = self.impossible[0]
            return (
                f"{len(self.impossible)} impossible tokens, the first {first.token} at position "
                f"{first.position} of {first.text or 'a text'}: {first.reason}"
            )
        worst = max(self.shares, key=lambda test: abs(test.z))
        return (
            f"e-value 10^{self.peak / np.log(10):.1f} after {self.tokens:,} tokens, alarm at "
            f"10^{-np.log10(self.level):.1f}; most of it bet on {self.leading_bet}; "
            f"{worst.direction}: {worst.observed:.3f} of the tokens where {worst.expected:.3f} are "
            f"due (bias {worst.bias:+.3f}, z = {worst.z:.1f})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures, shares, curve and first impossible tokens as plain values."""
        return {
            "name": self.name,
            "texts": self.texts,
            "tokens": self.tokens,
            "alarmed": self.alarmed,
            "e_value_log10": self.peak / math.log(10),
            "loudest": self.leading_bet if self.tokens else None,
            "band": self.bands[0].tolist(),
            "tests": [asdict(test) | {"bias": test.bias} for test in self.shares],
            "impossible": [asdict(token) for token in self.impossible[:SHOWN]],
            "impossible_count": len(self.impossible),
            "curve": self.thinned(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of an audit, with its controls."""

    verdict: AuditVerdict
    line: str
    claim: float | None  # least bias that has power 0.99
    control: Control | None  # the planted bias; None: an alarm, or nothing to claim
    audited: MethodAudit
    plain: MethodAudit | None
    seconds: float = 0.0

    @property
    def shared(self) -> bool:
        """Return whether plain sampling is biased as well."""
        return self.plain is not None and self.plain.alarmed

    def to_json(self) -> dict[str, Any]:
        """Return verdict, line, claim, controls and both methods as plain values."""
        level = self.audited.level
        return {
            "verdict": self.verdict.value,
            "line": self.line,
            "level": level,
            "alarm_log10": alarm(level) / math.log(10),
            "bias_caught_with_probability_0.99": self.claim,
            "bias_in_plain_sampling": self.shared,
            "controls": {
                "ars": self.plain.to_json() if self.plain else None,
                "injected": asdict(self.control) if self.control else None,
            },
            "sps": self.audited.to_json(),
            "seconds": self.seconds,
        }


GROWTH = 1.1  # how far the sample grows before the simulated claim is computed again


class AuditWithBaseline:
    """The method under audit and its baseline, whose verdict is known at any time.

    `plain` has texts of the same target without a draft, if any. `bias` is the one that must be
    found (None: whatever the length allows), and `undecided` the verdict where texts do not decide.
    """

    def __init__(
        self,
        audited: MethodAudit,
        plain: MethodAudit | None = None,
        bias: float | None = None,
        undecided: AuditVerdict = AuditVerdict.NOT_VALID,
    ) -> None:
        self.audited, self.plain, self.bias, self.undecided = audited, plain, bias, undecided
        self._tried = 0
        self._claim: float | None = None

    @property
    def alarmed(self) -> bool:
        """Return whether either method alarms."""
        return self.audited.alarmed or (self.plain is not None and self.plain.alarmed)

    def claim(self, growth: float = GROWTH) -> float | None:
        """Return the least detectable bias, computed again once the sample grew by `growth`."""
        if self.audited.tokens > growth * self._tried:
            self._tried = self.audited.tokens
            self._claim = self.audited.claim()
        return self._claim

    @property
    def decided(self) -> bool:
        """Return whether texts suffice: a method alarms, or `bias`, if given, would be detected."""
        if self.alarmed:
            return True
        return self.bias is not None and (claim := self.claim()) is not None and claim <= self.bias

    def finding(self, seconds: float = 0.0) -> Finding:
        """Return the finding after `seconds`: a claim, and its control unless `audited` alarms."""
        claim = self.claim(growth=1.0)
        control = self.audited.plant(claim) if claim and not self.audited.alarmed else None
        verdict, line = self._judge(claim, control)
        return Finding(
            verdict=verdict,
            line=line,
            claim=claim,
            control=control,
            audited=self.audited,
            plain=self.plain,
            seconds=seconds,
        )

    def _judge(self, claim: float | None, control: Control | None) -> tuple[AuditVerdict, str]:
        """Return verdict and reason by the first that applies, of plain texts before audited ones.

        Broken statements are undecided, and an alarm is BIAS. Undecided too are no claim or
        control, a control that is missed too often, and a claim above `bias`. All else is HELD.
        """
        for method, where in ((self.plain, "in plain sampling already: "), (self.audited, "")):
            if method is not None and method.broken:
                return self.undecided, f"{where}{method.broken[0]}: no probabilities to bet on"
            if method is not None and method.alarmed:
                return AuditVerdict.BIAS, f"{where}{method.alarm_line}"
        if claim is None or control is None:
            return self.undecided, "too few tokens, or distributions too sure, to see any bias"
        least = format_claim(claim)
        if not control.passed:
            caught = f"{control.caught} of {control.repeats}"
            return self.undecided, f"a planted bias of {least} was caught in {caught} only"
        if self.bias is not None and claim > self.bias:
            needed = f"a bias of {self.bias:g}, enough for {least}"
            return self.undecided, f"too few tokens for {needed}"
        summary = f"would have caught a bias of {least} or more with probability 0.99; found none"
        return AuditVerdict.HELD, summary

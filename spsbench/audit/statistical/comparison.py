"""Greedy texts against a reference: identical, a tie within rounding, or a bug.

See docs/design.md, invariant 9. Callers score the reference and measure its rounding.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from spsbench.audit.statistical.finding import AuditVerdict

Token = TypeVar("Token", bound=Hashable)  # an id, or what an engine writes for a token


class GreedyKind(StrEnum):
    """Outcome of the comparison of two greedy texts."""

    IDENTICAL = "identical"
    TIE = "tie"
    BUG = "bug"
    UNKNOWN = "differs, not known by how much"
    ALONE = "without anything to compare with"


NO_COMPARISON = (GreedyKind.UNKNOWN, GreedyKind.ALONE)


@dataclass(frozen=True, slots=True)
class Compared:
    """One greedy text compared with its reference."""

    name: str
    kind: GreedyKind
    position: int | None = None  # first token that differs
    tokens: tuple[int, int] | tuple[str, str] | None = None  # the reference's, the text's
    gap: float | None = None  # between the logarithms of the two tokens
    tolerance: float | None = None
    logits: tuple[float, float] | None = None  # the reference's, for the two tokens

    @property
    def divergence(self) -> dict[str, Any] | None:
        """Return where the texts part, as plain values; None where no position is known."""
        if self.position is None:
            return None
        fields = ("position", "tokens", "gap", "tolerance", "kind")
        return {name: getattr(self, name) for name in fields}


def greedy_kind(
    pair: tuple[Token, Token], likeliest: Collection[Token], gap: float | None, tolerance: float
) -> GreedyKind:
    """Return TIE if `pair` are the two likeliest, at most `tolerance` apart (`gap`), else BUG."""
    within = gap is not None and gap <= tolerance
    return GreedyKind.TIE if within and set(pair) == set(likeliest) else GreedyKind.BUG


def with_wrong_token(tokens: Sequence[Token], at: int, wrong: Token) -> list[Token]:
    """Return the control: a text with a wrong token at one position, which must be a bug."""
    return [*tokens[:at], wrong, *tokens[at + 1 :]]


@dataclass
class GreedyResult:
    """Comparisons of all texts with a reference, and the controls."""

    reference: str
    compared: list[Compared] = field(default_factory=list)
    planted: bool = True  # the planted wrong token was classified as a bug
    repeated: bool = True  # the reference gave the same text twice

    @property
    def counts(self) -> Counter[GreedyKind]:
        """Return the number of texts of each kind."""
        return Counter(comparison.kind for comparison in self.compared)

    @property
    def verdict(self) -> AuditVerdict:
        """Return BIAS for any bug; HELD if a text and both controls hold; else NOT_VALID."""
        if self.counts[GreedyKind.BUG]:
            return AuditVerdict.BIAS
        conclusive = len(self.compared) > sum(self.counts[kind] for kind in NO_COMPARISON)
        valid = conclusive and self.planted and self.repeated
        return AuditVerdict.HELD if valid else AuditVerdict.NOT_VALID

    @property
    def failed_controls(self) -> str:
        """Return the controls that failed, each after a semicolon."""
        failed = "" if self.repeated else f"; {self.reference} differs from itself"
        return failed + ("" if self.planted else "; a planted wrong token was not called a bug")

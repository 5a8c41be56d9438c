"""Verdicts on programs, and pass@k: the chance that one of k programs passes.

pass@k is the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374, eq. 1).
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

K = (1, 10, 100)  # what papers report


class ProgramVerdict(StrEnum):
    """The verdict on a program. Only `PASSED` counts for pass@k."""

    PASSED = "passed"
    FAILED = "failed"  # including wrong answers and syntax errors
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    ENDED_EARLY = "ended early"  # the process exited before the end of its test
    OUTPUT_LIMIT = "output limit"
    IMPORT_MISSING = "import missing"  # only the standard library is available


class Outcome(NamedTuple):
    """Outcome of a program."""

    verdict: ProgramVerdict
    detail: str  # partly written by the program: escape before display
    seconds: float  # wall-clock time without the interpreter's start
    wall_only: bool = False  # timed out with processor time left: the machine may have been busy

    def __str__(self) -> str:
        """Return `passed`, or the verdict and its detail: `failed: AssertionError`."""
        return f"{self.verdict}: {self.detail}" if self.detail else str(self.verdict)


def unbiased_pass_at_k(n: int, c: int, k: int) -> float:
    """Return the estimate of pass@k from `c` passes of `n` programs: 1 - C(n - c, k) / C(n, k).

    ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} passes in {n}: expected 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    # The quotient is the product of 1 - k / i; as a sum of logarithms nothing can overflow.
    return 0.0 - math.expm1(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def pass_at_k(problems: Iterable[Sequence[bool]], ks: Iterable[int] = K) -> dict[int, list[float]]:
    """Return k -> pass@k of each problem, for those `ks` of which every problem has k programs.

    `problems`: whether each program of a problem passed; without any, {}.
    """
    counts = [(len(passed), sum(passed)) for passed in problems]
    fewest = min(counts, default=(0, 0))[0]
    return {k: [unbiased_pass_at_k(n, c, k) for n, c in counts] for k in ks if k <= fewest}

"""The verdict on a program, and its outcome: the words in which a sandbox tells what happened."""

from enum import StrEnum
from typing import NamedTuple


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

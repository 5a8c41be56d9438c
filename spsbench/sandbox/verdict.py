"""What became of a program, and the limits it ran under."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class ProgramVerdict(StrEnum):
    """What became of a program. Only `PASSED` counts for pass@k."""

    PASSED = "passed"
    FAILED = "failed"  # an exception, a wrong answer and a syntax error among them
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    ENDED_EARLY = "ended early"  # the process went away without its test having ended
    OUTPUT_LIMIT = "output limit"
    IMPORT_MISSING = "import missing"  # only the standard library is there


class Outcome(NamedTuple):
    """The end of one program."""

    verdict: ProgramVerdict
    detail: str  # the program's own words in part: escape it before it is shown
    seconds: float  # of the wall clock, the interpreter's start not in it
    wall_only: bool = False  # timed out with processor time left: the machine may have been busy

    def __str__(self) -> str:
        """`failed: AssertionError`, `passed`."""
        return f"{self.verdict}: {self.detail}" if self.detail else str(self.verdict)


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What a program may use."""

    timeout: float = 3.0  # seconds of processor time; of the wall clock GRACE more
    memory: int = 1024  # MiB of address space
    output: int = 10  # MiB written to stdout and stderr together
    files: int = 32  # MiB of scratch space, where the level has any

    def described(self) -> dict[str, Any]:
        """Plain values, for logs."""
        return asdict(self)


GRACE = 0.7
"""Seconds of the wall clock beyond the limit of processor time."""
MIB = 1 << 20

"""How a program ended."""

from enum import StrEnum
from typing import NamedTuple

from spsbench.errors import Exit, SpsError


class SandboxError(SpsError):
    """No sandbox holds here, or the one in use failed: nothing was or will be run."""

    code = Exit.SANDBOX


class Verdict(StrEnum):
    """What became of a program; only `PASSED` counts as right."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    ENDED_EARLY = "ended early"
    OUTPUT_LIMIT = "output limit"
    IMPORT_MISSING = "import missing"


class Outcome(NamedTuple):
    """The end of one program."""

    verdict: Verdict
    detail: str  # ASCII, short: the error, the signal, or which clock ran out
    seconds: float  # on the wall, the start of the interpreter among them
    output: bytes = b""  # the beginning of what it printed

    @property
    def by_wall(self) -> bool:
        """Whether only the wall clock ran out: perhaps the machine was busy."""
        return self.verdict is Verdict.TIMED_OUT and self.detail == WALL


WALL, CPU = "wall clock", "processor time"

"""What is run and killed: a command, and what of its folder must be as without kills."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.compared import bare

COMMON = ("--threads", "1", "--resume")


@dataclass(frozen=True)
class Work:
    """A command of `sps`.

    Args:
        words: all but where it is done, and its folder.
        bare: of its folder, what no kill may change.
    """

    words: tuple[str, ...]
    bare: Callable[[Path], list[bytes]]

    def arguments(self, folder: Path, on: str) -> list[str]:
        """For a run in this folder; begun already, it is gone on with."""
        return [*self.words, *COMMON, "--on", on, "--out", str(folder)]


def files(pattern: str) -> Callable[[Path], list[bytes]]:
    """The bytes of some files of a folder, digested."""

    def read(folder: Path) -> list[bytes]:
        there = sorted(folder.glob(pattern))
        return [hashlib.sha256(path.read_bytes()).digest() for path in there] or [b"none"]

    return read


def of_runs(pattern: str) -> Callable[[Path], list[bytes]]:
    """The records of some runs within a folder."""
    return lambda folder: [line for each in sorted(folder.glob(pattern)) for line in bare(each)]


SIZE = ("--limit", "6", "--max-new-tokens", "8")
WORKS = {
    "bench": Work(("bench", "xsum", "--data", "mini", *SIZE, "-k", "2", "--samples", "2"), bare),
}

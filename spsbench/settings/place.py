"""Where a run goes, and how it starts there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.errors import UsageError
from spsbench.settings.option import RUN, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder of a run, and what becomes of one that is there already."""

    out: Annotated[Path | None, Option("Folder.", RUN, flags=("o",), shown="results/...")] = None
    resume: Annotated[bool, Option("Go on with a run.", RUN)] = False
    resume_anyway: Annotated[bool, Option("Even under another configuration.", RUN)] = False
    overwrite: Annotated[bool, Option("Move the old run aside.", RUN)] = False
    shard: Annotated[str, Option("i/n: a slice of the samples.", RUN)] = "0/1"
    score: Annotated[
        bool | None,
        Option("Run generated programs, in a sandbox.", RUN, shown="if one holds"),
    ] = None

    def __post_init__(self) -> None:
        if self.overwrite and (self.resume or self.resume_anyway):
            raise UsageError("--resume with --overwrite: expected one of them. Leave one out")
        shard_of(self.shard)

    @property
    def slice(self) -> tuple[int, int]:
        """Which of how many slices, counted from 0."""
        return shard_of(self.shard)


def shard_of(text: str) -> tuple[int, int]:
    """`i/n`, counted from 0.

    Raises:
        UsageError: something else.
    """
    number, slash, total = text.partition("/")
    digits = number.isdecimal() and total.isdecimal()
    if not slash or not digits or not int(number) < int(total):
        raise UsageError(f"--shard {text}: expected i/n with i from 0 to n - 1, such as 0/4")
    return int(number), int(total)

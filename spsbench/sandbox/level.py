"""The protocol of a level of isolation: how to start an interpreter in it."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class Start(NamedTuple):
    """How one program is started."""

    command: list[str]
    folder: str  # where
    order: dict[str, Any]  # how the runner locks itself in; see inside/runner.py


class Level(Protocol):
    """One way to hold a program."""

    @property
    def name(self) -> str:
        """As `--sandbox` names it."""

    def missing(self) -> str | None:
        """Why it cannot be used on this machine, or None; starts nothing."""

    def start(self) -> AbstractContextManager[Start]:
        """A start, with a scratch folder of its own that is gone afterwards."""

    def flags(self) -> list[str]:
        """How it is set up, for the record."""

    def files(self) -> list[str]:
        """Programs that its strength rests on."""

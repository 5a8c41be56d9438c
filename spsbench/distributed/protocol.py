"""What workers are to a scheduler, and what a worker does: pieces out, events in.

Nothing here knows what is worked on, nor by whom: Ray, processes of this machine, or a simulation.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from spsbench.errors import SpsError


class Piece(NamedTuple):
    """Units of one group for one worker, of seconds to minutes."""

    number: int
    group: int
    units: tuple[Any, ...]  # each is made, or fails, as a whole


class Hello(NamedTuple):
    """How a worker introduces itself."""

    place: str  # of which machine, for messages
    environment: Mapping[str, Any]  # flat: must be as the driver's
    provenance: Mapping[str, Any]  # of its machine; empty where no times are taken


class Work(NamedTuple):
    """What has come of a piece."""

    results: Sequence[Any]  # one a unit
    note: Any = None  # what else the driver should know


class Joined(NamedTuple):
    """A worker is ready."""

    worker: str
    hello: Hello


class Done(NamedTuple):
    """It has made a piece."""

    worker: str
    piece: int
    work: Work


class Failed(NamedTuple):
    """It could not, and is ready for another."""

    worker: str
    piece: int
    error: str


class Lost(NamedTuple):
    """It is gone; another may join in its place."""

    worker: str
    reason: str


class Refused(NamedTuple):
    """It cannot work at all, and no other could: the run ends."""

    worker: str
    error: SpsError


Event = Joined | Done | Failed | Lost | Refused


class Hand(Protocol):
    """What works, in a process of its own. Everything that it takes and gives is pickled."""

    @abstractmethod
    def hello(self) -> Hello:
        """Be ready: called once, first.

        Raises:
            SpsError: what is asked cannot be done here.
        """

    @abstractmethod
    def work(self, units: Sequence[Any]) -> Work:
        """Make some units, in order. Whatever it raises is a failure of the piece."""


Opener = Callable[[], Hand]
"""Makes a hand in the worker's process: a partial of something that a module holds."""


class Workers(Protocol):
    """Those who work. Who is lost is replaced, as long as there is somewhere to."""

    @property
    @abstractmethod
    def coming(self) -> int:
        """How many are there or may yet join; at 0 nothing can go on."""

    @abstractmethod
    def give(self, worker: str, piece: Piece) -> None:
        """Have a worker that has joined, and has nothing to do, make a piece."""

    @abstractmethod
    def wait(self, seconds: float) -> Sequence[Event]:
        """What has happened; waits for something up to `seconds`."""

    @abstractmethod
    def close(self) -> None:
        """End them all, whatever they do."""

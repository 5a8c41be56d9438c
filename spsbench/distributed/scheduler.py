"""Hands out pieces and takes in what comes of them, whatever becomes of the workers.

A unit counts as done once `take` has returned, which makes it durable; until then it is in flight,
and is run again if its worker is lost. What it keeps grows with the workers, never with the units.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from spsbench.distributed.protocol import (
    Done,
    Event,
    Failed,
    Hello,
    Joined,
    Lost,
    Piece,
    Refused,
    Work,
    Workers,
)
from spsbench.distributed.sizes import Sizes
from spsbench.errors import UnavailableError

TRIES = 3  # failures of a unit, after which it is given up
LOSSES = 5  # workers that may be lost over one unit: most are lost for reasons of their own
STILLBORN = 3  # workers that may be lost in a row before any has joined, times how many there are
BACKUP = 4.0  # times as long as was expected: then a piece is given to an idle worker as well
PATIENCE = 30.0  # seconds, whatever was expected
TICK = 1.0  # seconds between two looks at who takes long


class Group(NamedTuple):
    """Units that need the same models."""

    total: int
    units: Iterator[Any]  # made one at a time


class Again(NamedTuple):
    """A unit that has failed before: it is handed out alone, so that it can be told apart."""

    group: int
    unit: Any
    failures: int
    losses: int


class Flight(NamedTuple):
    """A piece that somebody works on."""

    piece: Piece
    again: Again | None  # its only unit's past
    began: float
    workers: set[str]


class Ledger(NamedTuple):
    """Who is told what."""

    take: Callable[[str, Any, Any], None]  # worker, unit, result: on disk when it returns
    give_up: Callable[[Any, str], None]  # unit, why: it failed so often
    joined: Callable[[str, Hello], None] = lambda worker, hello: None  # raises to refuse it
    noted: Callable[[Any], None] = lambda note: None
    told: Callable[[], None] = lambda: None  # after every event
    lost: Callable[[str, str], None] = lambda worker, reason: None


class Scheduler:
    """One run of it.

    Args:
        clock: seconds; a simulation has its own.
    """

    def __init__(
        self,
        workers: Workers,
        groups: Sequence[Group],
        ledger: Ledger,
        *,
        sizes: Sizes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers, self._groups, self._ledger = workers, groups, ledger
        self._sizes, self._clock = sizes or Sizes(), clock
        self._left = [group.total for group in groups]
        self._again: deque[Again] = deque()
        self._idle: dict[str, int | None] = {}  # worker -> the group it had last
        self._busy: dict[str, int] = {}  # worker -> piece
        self._flights: dict[int, Flight] = {}
        self._number = self._stillborn = self.losses = self.backups = 0

    @property
    def workers(self) -> int:
        """Those that have joined."""
        return len(self._idle) + len(self._busy)

    @property
    def flying(self) -> int:
        """Pieces that are worked on."""
        return len(self._flights)

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Go on until every unit is done or given up, or `stop` says so.

        Raises:
            UnavailableError: nobody is left to work.
            SpsError: what a worker refuses, or `Ledger.joined` refuses of one.
        """
        while not stop():
            self._hand_out()
            if not (self._flights or self._again or any(self._left)):
                return
            if not self._workers.coming:
                raise UnavailableError(
                    "no worker is left: expected one or more. What was made is kept: go on with "
                    "--resume when there are some"
                )
            for event in self._workers.wait(TICK):
                self._see(event)
                self._ledger.told()

    def _see(self, event: Event) -> None:
        match event:
            case Joined(worker, hello):
                self._ledger.joined(worker, hello)
                self._stillborn = 0
                self._idle[worker] = None
            case Done(worker, number, work):
                self._free(worker, number)
                self._land(worker, number, work)
            case Failed(worker, number, error):
                self._free(worker, number)
                self._drop(worker, number, error, failures=1)
            case Lost(worker, reason):
                self._lose(worker, reason)
            case Refused(_, error):
                raise error

    def _free(self, worker: str, number: int) -> None:
        if self._busy.get(worker) != number:  # told twice
            return
        del self._busy[worker]
        flight = self._flights.get(number)
        self._idle[worker] = flight.piece.group if flight else None

    def _land(self, worker: str, number: int, work: Work) -> None:
        flight = self._flights.get(number)
        if flight is None or worker not in flight.workers:
            return  # another was faster, or it was thought lost: each unit counts once
        del self._flights[number]
        piece = flight.piece
        self._sizes.saw(piece.group, len(piece.units), self._clock() - flight.began)
        if work.note is not None:
            self._ledger.noted(work.note)
        for unit, result in zip(piece.units, work.results, strict=True):
            self._ledger.take(worker, unit, result)

    def _lose(self, worker: str, reason: str) -> None:
        known = worker in self._idle or worker in self._busy
        self._idle.pop(worker, None)
        number = self._busy.pop(worker, None)
        self.losses += 1
        self._ledger.lost(worker, reason)
        if number is not None:
            self._drop(worker, number, f"worker lost: {reason}", losses=1)
        if not known:
            self._stillborn += 1
        if self._stillborn > STILLBORN * max(self._workers.coming, 1):
            raise UnavailableError(
                f"workers end before they begin ({reason}): expected them to load their models. "
                "See their logs, and go on with --resume"
            )

    def _drop(
        self, worker: str, number: int, error: str, *, failures: int = 0, losses: int = 0
    ) -> None:
        """A piece did not get through with one worker: its units go again, one by one."""
        flight = self._flights.get(number)
        if flight is None:
            return
        flight.workers.discard(worker)
        if flight.workers:  # somebody else has it too
            return
        del self._flights[number]
        past = flight.again
        for unit in flight.piece.units:
            again = Again(
                flight.piece.group,
                unit,
                failures + (past.failures if past else 0),
                losses + (past.losses if past else 0),
            )
            if again.failures >= TRIES or again.losses >= LOSSES:
                self._ledger.give_up(unit, error)
            else:
                self._again.append(again)

    def _hand_out(self) -> None:
        for worker, before in list(self._idle.items()):
            made = self._next(before)
            if made is not None:
                self._give(worker, *made)
        if self._idle and self._flights and not any(self._left):
            self._back_up()

    def _next(self, before: int | None) -> tuple[Piece, Again | None] | None:
        """What comes next, best of the group whose models a worker has."""
        most = max(range(len(self._left)), key=self._left.__getitem__, default=None)
        group = before if before is not None and self._left[before] else most
        if group is not None and self._left[group]:
            count = self._sizes.of(group, self._left[group], self.workers)
            units = [u for _, u in zip(range(count), self._groups[group].units, strict=False)]
            self._left[group] = self._left[group] - len(units) if len(units) == count else 0
            if units:
                return self._numbered(group, tuple(units)), None
            return self._next(before)
        if self._again:
            again = self._again.popleft()
            return self._numbered(again.group, (again.unit,)), again
        return None

    def _numbered(self, group: int, units: tuple[Any, ...]) -> Piece:
        self._number += 1
        return Piece(self._number, group, units)

    def _give(self, worker: str, piece: Piece, again: Again | None) -> None:
        self._flights[piece.number] = Flight(piece, again, self._clock(), {worker})
        self._start(worker, piece)

    def _start(self, worker: str, piece: Piece) -> None:
        self._idle.pop(worker)
        self._busy[worker] = piece.number
        self._workers.give(worker, piece)

    def _back_up(self) -> None:
        """Give what takes far too long to those who would wait for it: the first to end counts."""
        now = self._clock()
        late = []
        for flight in self._flights.values():
            piece = flight.piece
            expected = self._sizes.expected(piece.group, len(piece.units))
            limit = max(BACKUP * expected if expected is not None else PATIENCE, PATIENCE)
            if len(flight.workers) == 1 and now - flight.began > limit:
                late.append(flight)
        late.sort(key=lambda flight: flight.began)
        for worker, flight in zip(list(self._idle), late, strict=False):
            self.backups += 1
            flight.workers.add(worker)
            self._start(worker, flight.piece)

"""Hands without models, for processes; and workers without processes, in a time of their own."""

import heapq
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.distributed.protocol import Done, Event, Failed, Hello, Joined, Lost, Piece, Work
from spsbench.errors import DataError

SAME = {"version.torch": "2.13"}


@dataclass(frozen=True)
class Doubling:
    """Doubles numbers; some fail, some end its process, some do so now and then."""

    failing: tuple[int, ...] = ()
    deadly: tuple[int, ...] = ()
    seconds: float = 0.0
    refuses: bool = False

    def hello(self) -> Hello:
        if self.refuses:
            raise DataError("no model (here): expected one. Fetch it")
        return Hello("here", SAME, {})

    def work(self, units: Sequence[int]) -> Work:
        for unit in units:
            time.sleep(self.seconds)
            if unit in self.failing:
                raise ValueError(f"unit {unit}")
            if unit in self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
        return Work([2 * unit for unit in units])


class Simulated:
    """Workers in simulated time: pieces take what `seconds` says, workers are lost by chance.

    `doubled`: what is done is told twice, and what a lost worker was at comes in late.
    """

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        lost: float = 0.0,  # chance, a piece
        failing: tuple[int, ...] = (),
        deadly: tuple[int, ...] = (),
        doubled: bool = False,
        slow: dict[str, float] | None = None,
    ) -> None:
        self.now = 0.0
        self._draw = random.Random(seed)
        self._lost, self._failing, self._deadly = lost, set(failing), set(deadly)
        self._doubled, self._slow = doubled, slow or {}
        self._events: list[tuple[float, int, Event]] = []
        self._order = self._names = 0
        self.coming = count
        self.made: list[int] = []  # every unit that was worked on, as often as it was
        self.gone: set[str] = set()
        for _ in range(count):
            self._join(0.0)

    def clock(self) -> float:
        return self.now

    def give(self, worker: str, piece: Piece) -> None:
        assert worker not in self.gone, "a piece for one who is gone"
        self.made += piece.units
        took = sum(self._draw.lognormvariate(0, 0.5) for _ in piece.units)
        end = self.now + took * self._slow.get(worker, 1.0)
        done = Done(worker, piece.number, Work([2 * unit for unit in piece.units]))
        if self._draw.random() < self._lost or self._deadly & set(piece.units):
            self.gone.add(worker)
            self._at(end, Lost(worker, "SIGKILL"))
            self._join(end + 1)
            if self._doubled:
                self._at(end + 2, done._replace(worker="nobody"))
        elif self._failing & set(piece.units):
            self._at(end, Failed(worker, piece.number, "ValueError: unit"))
        else:
            self._at(end, done)
            if self._doubled:
                self._at(end, done)

    def wait(self, seconds: float) -> Sequence[Event]:
        until = self.now + seconds
        if not self._events or self._events[0][0] > until:
            self.now = until
            return []
        self.now, _, event = heapq.heappop(self._events)
        return [event]

    def close(self) -> None:
        self._events.clear()

    def _join(self, at: float) -> None:
        self._names += 1
        name = f"w{self._names}"
        self._at(at, Joined(name, Hello(name, SAME, {})))

    def _at(self, time: float, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, event))

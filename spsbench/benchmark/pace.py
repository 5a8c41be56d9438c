"""How far a run is: what has been made of how much, and how fast."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from spsbench.hardware.files import clock
from spsbench.metrics.gains import baseline
from spsbench.metrics.sums import LOADED
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record


class Time(NamedTuple):
    """Of rounds, and what they made."""

    seconds: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Seconds; never 0."""
        return max(self.seconds, 1e-12) / self.tokens

    def plus(self, other: "Time") -> "Time":
        """Both."""
        return Time(self.seconds + other.seconds, self.tokens + other.tokens)


class Pace:
    """Counts what has been made: tokens a second, tau and speed-up as they stand."""

    def __init__(self, total: int, cells: Sequence[Cell] = ()) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._began = time.monotonic()
        self._tokens = self._drafted_rounds = self._drafted_tokens = 0
        bases = {cell.id: baseline(cell, cells) for cell in cells if cell.k != 0}
        self._base = {name: base.id for name, base in bases.items() if base is not None}
        self._times: dict[str, dict[tuple[str, int], Time]] = {cell.id: {} for cell in cells}
        self._pairs: dict[str, tuple[Time, Time]] = {}  # of both arms, over generations of both

    def add(self, cell: Cell, record: Record) -> None:
        """Count one record."""
        self.done += 1
        self.failed += record.error is not None
        tokens = len(record.tokens)
        self._tokens += tokens
        if cell.k != 0:
            self._drafted_rounds += len(record.rounds)
            self._drafted_tokens += tokens
        if not {*record.flags} - {LOADED} and record.rounds and cell.id in self._times:
            key = record.sample, record.repeat
            self._times[cell.id][key] = Time(sum(r.seconds for r in record.rounds), tokens)
            for name, base in self._base.items():
                if cell.id in (name, base):
                    self._pair(name, base, key)

    def _pair(self, name: str, base: str, key: tuple[str, int]) -> None:
        own, other = self._times[name].get(key), self._times[base].get(key)
        if own is not None and other is not None:
            old, new = self._pairs.get(name, (Time(0, 0), Time(0, 0)))
            self._pairs[name] = old.plus(other), new.plus(own)

    def _gained(self) -> str:
        """By the rule of the final table: over the generations that both arms have.

        Of several cells the least and the greatest, which are no interval, and so said to be two.
        """
        gained = [old.per_token / new.per_token for old, new in self._pairs.values()]
        if len(gained) == 1:
            return f"speed-up {gained[0]:.2f}x so far"
        least, greatest = f"{min(gained):.2f}x", f"{max(gained):.2f}x"
        return f"speed-up so far {least} (least of {len(gained)} cells) to {greatest} (greatest)"

    def __str__(self) -> str:
        """`312/800, 410 tokens/s, tau 3.10, speed-up 1.90x so far, 0:04:10 to go`."""
        passed = max(time.monotonic() - self._began, 1e-9)
        parts = [f"{self.done}/{self.total}", f"{rate(self._tokens / passed)} tokens/s"]
        if self._drafted_rounds:
            parts.append(f"tau {self._drafted_tokens / self._drafted_rounds:.2f}")
        if self._pairs:
            parts.append(self._gained())
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.done:
            parts.append(f"{clock(passed / self.done * (self.total - self.done))} to go")
        return ", ".join(parts)


def rate(value: float) -> str:
    """Two digits at least: `410`, `4.1`, `0.41`, `0.041`."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"

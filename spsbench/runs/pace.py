"""How far a run is: what has been made of how much, and how fast."""

import time

from spsbench.machine.sizes import clock
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record


class Pace:
    """Counts what has been made: tokens a second, tau and speed-up as they stand."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._began = time.monotonic()
        self._tokens = self._drafted_rounds = self._drafted_tokens = 0
        self._spent = {True: 0.0, False: 0.0}  # seconds of rounds, by whether it is ArS
        self._made = {True: 0, False: 0}

    def add(self, cell: Cell, record: Record) -> None:
        """Count one record."""
        self.done += 1
        self.failed += record.error is not None
        tokens = len(record.tokens)
        plain = cell.k == 0
        self._tokens += tokens
        self._made[plain] += tokens
        self._spent[plain] += sum(r.seconds for r in record.rounds)
        if not plain:
            self._drafted_rounds += len(record.rounds)
            self._drafted_tokens += tokens

    def __str__(self) -> str:
        """`312/800, 410 tokens/s, tau 3.1, speed-up 1.9x, 0:04:10 to go`."""
        passed = max(time.monotonic() - self._began, 1e-9)
        parts = [f"{self.done}/{self.total}", f"{self._tokens / passed:.0f} tokens/s"]
        if self._drafted_rounds:
            parts.append(f"tau {self._drafted_tokens / self._drafted_rounds:.2f}")
        if self._made[True] and self._made[False] and self._spent[False]:
            per_token = [self._spent[plain] / self._made[plain] for plain in (True, False)]
            parts.append(f"speed-up {per_token[0] / per_token[1]:.2f}x")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.done:
            parts.append(f"{clock(passed / self.done * (self.total - self.done))} to go")
        return ", ".join(parts)

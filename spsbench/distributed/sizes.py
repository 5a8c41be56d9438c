"""How large a piece is: some seconds of work, and less of it towards the end."""

from math import ceil

SECONDS = 20.0  # that a piece should take
MOST = 256  # units in one
SHARE = 2  # of what is left, each worker is given one in so many parts
MEMORY = 0.2  # weight of the newest piece in the mean


class Sizes:
    """What units of each group were seen to take."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._aim = seconds
        self._seconds: dict[int, float] = {}  # a unit

    def expected(self, group: int, units: int) -> float | None:
        """Seconds that a piece will take; None: none of its group is done yet."""
        mean = self._seconds.get(group)
        return None if mean is None else mean * units

    def of(self, group: int, left: int, workers: int) -> int:
        """Units for the next piece, of those that are left in its group; 1 at least.

        Guided self-scheduling (Polychronopoulos & Kuck 1987): never more than a share of what is
        left, so that the last pieces are small and nobody is waited for long.
        """
        mean = self._seconds.get(group)
        if mean is None:
            return 1
        fit = int(self._aim / max(mean, 1e-9))
        return max(1, min(fit, ceil(left / (SHARE * max(workers, 1))), MOST))

    def saw(self, group: int, units: int, seconds: float) -> None:
        """Note what a piece took."""
        now, before = seconds / units, self._seconds.get(group)
        self._seconds[group] = now if before is None else before + MEMORY * (now - before)

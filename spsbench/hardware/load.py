"""Notices other work on the machine while a sample is timed."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
OTHERS_AT_MOST = 0.1  # of the machine's processors, over the time of a sample
HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """Clocks at one moment, in seconds."""

    wall: float
    own: float  # processor time of this process
    busy: float | None  # of all processors, by everybody; None where the system does not say


def read_clocks() -> Reading:
    """The clocks now."""
    times = os.times()
    return Reading(time.monotonic(), times.user + times.system, busy_seconds())


def busy_seconds() -> float | None:
    """Processor seconds since boot that were not idle, on Linux."""
    try:
        fields = STAT.read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / HZ


def others(before: Reading, after: Reading) -> float | None:
    """Share of the machine's processors that other work took between two readings, 0 to 1."""
    if before.busy is None or after.busy is None:
        return None
    wall = after.wall - before.wall
    taken = (after.busy - before.busy) - (after.own - before.own)
    processors = os.cpu_count() or 1
    # The system counts in ticks: over a short sample a tick either way is no sign of anything.
    tick = 2 * processors / HZ
    return max(0.0, taken - tick) / (wall * processors) if wall > 0 else 0.0


def loaded(before: Reading, after: Reading) -> bool:
    """Whether the time between two readings should not be averaged with others."""
    share = others(before, after)
    if share is None:
        return os.getloadavg()[0] > (os.cpu_count() or 1) + 1
    return share > OTHERS_AT_MOST

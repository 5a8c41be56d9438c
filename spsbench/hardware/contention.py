"""Work of other programs: how many threads it takes now, and whether it disturbed a timing."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
SECONDS = 0.1
BUSY = 0.5  # threads of others, at work in the mean, beside which nothing is worth measuring
OTHERS_AT_MOST = 0.1  # share of the processors, over the time of a sample
HZ = os.sysconf("SC_CLK_TCK")
PROCESSORS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Clocks at one moment, in seconds."""

    wall: float
    own: float  # processor time of this process
    busy: float | None  # seconds of all processors, by everybody; None: the system does not say


def processor_seconds() -> float:
    """Return the user and system seconds that all threads of this process have used so far.

    From one count of the kernel: `time.process_time` asks each thread, which costs a small model's
    round up to a tenth under gVisor.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read_clocks(stat: Path = STAT) -> ClockReading:
    """Return the clocks now; `busy` has steal, but no idle or iowait, and is None if unreadable."""
    try:
        fields = stat.read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
        busy = (user + nice + system + irq + softirq + steal) / HZ
    except (OSError, ValueError):
        busy = None
    return ClockReading(time.monotonic(), processor_seconds(), busy)


def other_work_seconds(before: ClockReading, after: ClockReading) -> float | None:
    """Return the processor seconds that other work took between two readings; None if unknown."""
    if before.busy is None or after.busy is None:
        return None
    return (after.busy - before.busy) - (after.own - before.own)


def at_work(seconds: float = SECONDS) -> float:
    """Wait for `seconds`; return the mean number of threads that other processes had at work.

    They include children of this process and, in most containers, all of the machine; 0 where the
    system does not count them.
    """
    before = read_clocks()
    time.sleep(seconds)
    after = read_clocks()
    return max(0.0, other_work_seconds(before, after) or 0.0) / (after.wall - before.wall)


def other_work_share(before: ClockReading, after: ClockReading) -> float | None:
    """Return the share of all processors that other work took between two readings, 0 to 1.

    Two clock ticks a processor are forgiven. 0 if no time passed; None if it is unknown.
    """
    others_took, wall = other_work_seconds(before, after), after.wall - before.wall
    if others_took is None:
        return None
    # The system counts in ticks: over a short sample a tick either way is no sign of anything.
    tick = 2 * PROCESSORS / HZ
    return max(0.0, others_took - tick) / (wall * PROCESSORS) if wall > 0 else 0.0


def was_disturbed(before: ClockReading, after: ClockReading) -> bool:
    """Return whether other work took above `OTHERS_AT_MOST` of the processors between two readings.

    Where the system does not count it: whether the load average exceeds the processors by over 1.
    """
    share = other_work_share(before, after)
    return os.getloadavg()[0] > PROCESSORS + 1 if share is None else share > OTHERS_AT_MOST


def quota(path: Path = QUOTA) -> int | None:
    """Return the processors that this control group may use, rounded up; None without a limit."""
    try:
        most, period = path.read_text(encoding="ascii").split()
        return max(1, -(-int(most) // int(period)))
    except (OSError, ValueError):  # no group, or "max"
        return None


def threads_left(usual: int, others: float, machine: int, allowed: int | None = None) -> int:
    """Return how many of `usual` threads have a processor of their own; at least 1.

    The least of `usual`, the number on a quiet machine; of the `machine` processors less `others`,
    rounded, threads of other work (`at_work`); and of `allowed`, the processors that this control
    group may use (`quota`; None: no limit).
    """
    most = usual if allowed is None else min(usual, allowed)
    return max(1, min(most, machine - round(others)))

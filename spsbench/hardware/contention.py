"""Load by other programs: how many threads run now, and whether a timing was disturbed.

Times of day and averages lag behind; a few looks at the threads that run, or wait to, do not.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
OWN = Path("/proc/self/task")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
LOOKS = 20
SECONDS = 0.02
BUSY = 0.5  # threads of others, at work in the mean, beside which nothing is worth measuring


def at_work(seconds: float = SECONDS, stat: Path = STAT, own_tasks: Path = OWN) -> float:
    """Return the mean number of running or waiting threads of other processes.

    It sees all that the system counts: in most containers that is the whole machine. 0 where the
    system does not say.
    """
    seen = []
    for look in range(LOOKS):
        if look:
            time.sleep(seconds / LOOKS)
        every = running(stat)
        if every is None:
            return 0.0
        # Between the two looks a thread may have begun or ended: less than none is none.
        seen.append(max(0, every - own_running(own_tasks)))
    return sum(seen) / len(seen)


def running(stat: Path = STAT) -> int | None:
    """Return the threads of the machine that run or wait; None if the system does not say."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
    except (OSError, StopIteration):
        return None


def own_running(own_tasks: Path = OWN) -> int:
    """Return the threads of this process that run or wait, the current one included."""
    count = 0
    for task in own_tasks.iterdir():
        try:
            state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        count += state == "R"
    return count


def quota(path: Path = QUOTA) -> int | None:
    """Return the processors that this control group may use, rounded up; None without a limit."""
    try:
        most, period = path.read_text(encoding="ascii").split()
        return max(1, -(-int(most) // int(period)))
    except (OSError, ValueError):  # no group, or "max"
        return None


def threads_left(usual: int, others: float, machine: int, allowed: int | None = None) -> int:
    """Return how many of `usual` threads have a processor of their own; at least 1.

    Args:
        usual: threads that would be used on a quiet machine.
        others: as `at_work` tells.
        machine: processors that there are.
        allowed: as `quota` tells; what others do takes nothing from it, but from the machine.
    """
    most = usual if allowed is None else min(usual, allowed)
    return max(1, min(most, machine - round(others)))


OTHERS_AT_MOST = 0.1  # of the machine's processors, over the time of a sample
HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """Clocks at one moment, in seconds."""

    wall: float
    own: float  # processor time of this process
    busy: float | None  # of all processors, by everybody; None where the system does not say


def read_clocks() -> Reading:
    """Return the clocks now."""
    times = os.times()
    return Reading(time.monotonic(), times.user + times.system, busy_seconds())


def busy_seconds(stat: Path = STAT) -> float | None:
    """Return the processor seconds since boot that were not idle; None if unknown."""
    try:
        fields = stat.read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / HZ


def others(before: Reading, after: Reading) -> float | None:
    """Return the share of the processors that other work took between two readings, 0 to 1."""
    if before.busy is None or after.busy is None:
        return None
    wall = after.wall - before.wall
    taken = (after.busy - before.busy) - (after.own - before.own)
    processors = os.cpu_count() or 1
    # The system counts in ticks: over a short sample a tick either way is no sign of anything.
    tick = 2 * processors / HZ
    return max(0.0, taken - tick) / (wall * processors) if wall > 0 else 0.0


def loaded(before: Reading, after: Reading, average: float | None = None) -> bool:
    """Return whether the time between two readings was disturbed by other work.

    Args:
        before: clocks at its begin.
        after: clocks at its end.
        average: the load average, where the system counts nothing else; None = the system's.
    """
    share = others(before, after)
    if share is None:
        average = os.getloadavg()[0] if average is None else average
        return average > (os.cpu_count() or 1) + 1
    return share > OTHERS_AT_MOST

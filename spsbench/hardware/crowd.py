"""Who else wants a processor now, and how many processors that leaves.

Times of day and averages lag behind; a few looks at the threads that run, or wait to, do not.
"""

import time
from pathlib import Path

STAT = Path("/proc/stat")
OWN = Path("/proc/self/task")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
LOOKS = 20
SECONDS = 0.02
BUSY = 0.5  # threads of others, at work in the mean, beside which nothing is worth measuring


def at_work(seconds: float = SECONDS) -> float:
    """Threads of others that run or wait for a processor, the mean of some looks.

    It sees all that the system counts: in most containers that is the whole machine. 0 where the
    system does not say.
    """
    seen = []
    for look in range(LOOKS):
        if look:
            time.sleep(seconds / LOOKS)
        every = running()
        if every is None:
            return 0.0
        # Between the two looks a thread may have begun or ended: less than none is none.
        seen.append(max(0, every - own_running()))
    return sum(seen) / len(seen)


def running() -> int | None:
    """Threads of the machine that run or wait for a processor; None: the system does not say."""
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
    except (OSError, StopIteration):
        return None


def own_running() -> int:
    """Those of this process, the one that looks among them."""
    count = 0
    for task in OWN.iterdir():
        try:
            state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        count += state == "R"
    return count


def quota() -> int | None:
    """Processors that this control group may use at once, rounded up; None: no limit is known."""
    try:
        most, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, -(-int(most) // int(period)))
    except (OSError, ValueError):  # no group, or "max"
        return None


def left(usual: int, others: float, machine: int, allowed: int | None = None) -> int:
    """How many of `usual` threads have a processor of their own; at least 1.

    Args:
        usual: threads that would be used on a quiet machine.
        others: as `at_work` tells.
        machine: processors that there are.
        allowed: as `quota` tells; what others do takes nothing from it, but from the machine.
    """
    most = usual if allowed is None else min(usual, allowed)
    return max(1, min(most, machine - round(others)))

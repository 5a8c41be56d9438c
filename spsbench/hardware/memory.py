"""How much memory this machine has, and how much of it can be had."""

from pathlib import Path


def ram() -> tuple[int, int]:
    """(total, available) bytes of memory, within this control group's limit; 0 = unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        used -= _files(group / "memory.stat")
    except (OSError, ValueError):  # no group, or "max"
        return total, free
    return min(total, limit), min(free, max(limit - used, 0))


def _files(stat: Path) -> int:
    """Bytes of a group's memory that hold files nobody reads now: they are given up when asked."""
    for line in stat.read_text(encoding="ascii").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0

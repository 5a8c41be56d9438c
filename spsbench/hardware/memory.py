"""Memory: total and available, its bandwidth, huge pages, and memory that a process keeps."""

import ctypes
import mmap
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from spsbench.errors import OutOfMemoryError, first_line
from spsbench.hardware.environment import usable_cores
from spsbench.messages import LIBRARIES, announce_if_slow

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
KEPT = 1 << 30  # bytes that a process keeps
LEAST = 1 << 30  # bytes of address space in which torch and transformers can be imported
OWN = 32 << 20  # the most that glibc allows; larger ones come from the system each time


def ram() -> tuple[int, int]:
    """Return (total, available) bytes of memory, within the control group's limit; 0 if unknown."""
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
        stat = (group / "memory.stat").read_text(encoding="ascii").split()
        used -= int(stat[stat.index("inactive_file") + 1])  # a cache of files
    except (OSError, ValueError):  # no group, or "max"
        return total, free
    return min(total, limit), min(free, max(limit - used, 0))


def huge_mapping(size: int) -> mmap.mmap:
    """Return `size` bytes of zeros of this process's own, in huge pages where there are some.

    Over small pages a processor stops at each to look up where it is. Shared mappings get none.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not Linux, or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def keep_memory() -> bool:
    """Let malloc of glibc keep up to `KEPT` bytes that this process frees; return whether it will.

    Pages that come anew from the system are cleared by it first: products of 10 MB took two to
    three times as long. Blocks larger than `OWN` still come and go, or what is between them would
    never be given back: without that bound a training grew to 19 GB.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(option(MMAP_THRESHOLD, OWN)) and bool(option(TRIM_THRESHOLD, KEPT))


@contextmanager
def importing_libraries() -> Iterator[None]:
    """Run a block that imports torch and transformers, and log so if it takes long.

    OutOfMemoryError: `ulimit -v` is below `LEAST`, or it is set and the block raises ImportError,
    SystemError or OSError. Other errors pass, MemoryError too.
    """
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    bounded = space != resource.RLIM_INFINITY
    limit = f"ulimit -v is {space >> 10}"
    todo = "expected room for torch and transformers, more than a GiB. Raise the limit"
    if bounded and space < LEAST:  # some of them end the process, without an error
        raise OutOfMemoryError(f"out of memory ({limit}): {todo}")
    try:
        with announce_if_slow(LIBRARIES):
            yield
    except (ImportError, SystemError, OSError) as error:
        if bounded:
            reason = f"{first_line(error)}; {limit}"
            raise OutOfMemoryError(f"out of memory ({reason}): {todo}") from error
        raise


LARGE = 256 * 2**20  # bytes a thread reads: several times the caches
PASSES = 5


def read_bandwidth(threads: int | None = None, size: int = LARGE) -> float:
    """Measure the bytes per second that the processors read from memory, in about a second.

    The best of `PASSES` passes of `threads` threads (None: one for each of `usable_cores`). Each
    reads its own `size` bytes, in huge pages as weights lie. Other work can only lower the result.
    """
    import numpy as np

    count = threads or usable_cores()
    arrays = [np.frombuffer(huge_mapping(size), dtype=np.int64) for _ in range(count)]
    for array in arrays:
        array.fill(1)

    laps = []
    with ThreadPoolExecutor(count) as pool:
        for _ in range(PASSES):
            began = time.perf_counter()
            list(pool.map(np.sum, arrays))  # lets other threads run meanwhile
            laps.append(time.perf_counter() - began)
    return count * arrays[0].nbytes / min(laps)

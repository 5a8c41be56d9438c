"""Ranks: the rank of this process, room for more, and their end with the launcher."""

import ctypes
import os
import signal
import sys
from typing import NamedTuple

from spsbench.errors import UsageError
from spsbench.hardware.memory import ram

OURS = (
    "SPS_RANKS_STARTED"  # in the environment of ranks: the process of the `sps` that started them
)

SET_PARENT_DEATH_SIGNAL = 1  # of prctl

RANK_BYTES = 300 << 20  # memory of a process that has imported what it needs, and no model yet

RANK_TIMEOUT = 600.0  # seconds, torch's default for NCCL

LOST = "a rank has ended"  # so begins the line of a rank that only follows another one's end


class Ranks(NamedTuple):
    """The rank of this process, and the number of ranks."""

    rank: int = 0
    size: int = 1
    local: int = 0  # among the ranks of this machine


def ranks() -> Ranks:
    """Return the rank of this process; rank 0 of 1 where torchrun has not started it."""
    try:
        rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError):
        return Ranks()
    return Ranks(rank, size, local)


def usual_threads(size: int) -> int:
    """Return the processor threads for each of `size` ranks of one machine."""
    return max(1, len(os.sched_getaffinity(0)) // size)


def end_with_launcher() -> None:
    """End this rank with the `sps` that has started it; ranks of torchrun's own are torchrun's."""
    if OURS in os.environ:
        end_with_parent(int(os.environ[OURS]), signal.SIGTERM)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when `parent` ends; on Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, number)
        try:
            os.kill(parent, 0)
        except ProcessLookupError:  # it has ended before
            os.kill(os.getpid(), number)


def check_room(
    size: int, accelerators: int, cores: int | None = None, free: int | None = None
) -> None:
    """Refuse to start more ranks than this machine has room for.

    Args:
        size: how many ranks.
        accelerators: that they would run on, one each; 0 = on the processors.
        cores: processors; None = those of this process.
        free: bytes of memory, 0 = unknown; None = those of this machine.

    Raises:
        UsageError: more than the accelerators, or, without them, than the processors or the memory.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    free = ram()[1] if free is None else free
    if accelerators:
        most, of = accelerators, f"{accelerators} accelerators"
    else:
        most, of = max(2, cores), f"{cores} processors"
    if size <= most and free and size * RANK_BYTES > free:
        most, of = free // RANK_BYTES, f"{free / 1e9:.1f} GB of free memory"
    if size > most:
        raise UsageError(
            f"{size} ranks ({of}): expected at most {most} on this machine. Choose fewer with "
            "`parallel`, or start them with torchrun"
        )


class MissingRanksError(UsageError):
    """The command needs several ranks, and this process is alone."""

    def __init__(self, model: str, size: int, device: str) -> None:
        self.size, self.device = size, device
        super().__init__(
            f"{model} over {size} ranks (this process): expected {size} processes. "
            f"Start the program with torchrun --nproc-per-node {size}, and call "
            "spsbench.models.prepare.follow() where RANK is not 0"
        )

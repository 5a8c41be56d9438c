"""The rank of this process among those that torchrun started."""

import os
from typing import NamedTuple

from spsbench.errors import UsageError

RANK_TIMEOUT = 600.0  # seconds, torch's default for NCCL


class Ranks(NamedTuple):
    """The rank of this process, and the number of ranks."""

    rank: int = 0
    size: int = 1
    local: int = 0  # among the ranks of this machine


def ranks() -> Ranks:
    """Return this process's place among torchrun's ranks; `Ranks()`, 0 of 1, if it set none."""
    try:
        rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError):
        return Ranks()
    return Ranks(rank, size, local)


def missing_ranks(model: str, size: int) -> UsageError:
    """Return the error of a command that needs several ranks, in a process that is alone."""
    return UsageError(
        f"{model} over {size} ranks (this process): expected {size} processes. Start the command "
        f"or the program with torchrun --nproc-per-node {size} -m spsbench ..."
    )

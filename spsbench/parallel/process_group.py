"""The processes that torchrun started, as one torch process group with a timeout.

torchrun launches ranks and ends the others when one fails. A rank that has ended is noticed by its
closed connection, one that stands still by the timeout of the group; either is raised as
`LostRankError`, one line, in whatever words torch reports it.

`connect` joins the group.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from spsbench.errors import UnavailableError, UsageError
from spsbench.hardware.ranks import RANK_TIMEOUT, Ranks, ranks

MEETING = 300.0  # seconds in which all ranks of a command must have joined
UNLIMITED = 30 * 86400.0  # seconds: a program of the user's may load its model whenever it likes
KEY = "spsbench/timeout"  # where rank 0 stores the timeout, which it alone parses
JOINED = "spsbench/joined/"  # where each other rank says that it is there

_timeout = RANK_TIMEOUT  # of the group, once it is joined
_store: Any | None = None  # at which the ranks meet


class LostRankError(UnavailableError):
    """Another rank has ended or stands still, so that this one cannot go on."""


def open_store(within: float = UNLIMITED) -> Any:
    """Return the store at which the ranks meet; rank 0 opens it, the others wait until it is open.

    Args:
        within: seconds that another rank waits for it.

    Raises:
        LostRankError: rank 0 did not open it.
        UsageError: no address to meet at.
    """
    global _store
    if _store is None:
        if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
            raise UsageError(
                f"RANK without {' and '.join(absent)} (environment): expected all variables of "
                "torchrun. Start the ranks with torchrun, or unset RANK"
            )
        try:
            with lost_rank_as_error():
                _store, _, _ = next(rendezvous("env://", timeout=_limit(within)))
        except ValueError as error:
            raise UsageError(
                f"no rendezvous of the ranks (environment: {error}): expected the variables of "
                "torchrun. Start the ranks with it"
            ) from error
    return _store


def connect(timeout: float = RANK_TIMEOUT, within: float = UNLIMITED) -> None:
    """Join the process group of the ranks that torchrun started; a second call does nothing.

    Rank 0 waits for the others for minutes. They wait as long as rank 0 lives, which may have hours
    of other work first.

    Args:
        timeout: seconds that an exchange may take. That of rank 0 holds for all ranks.
        within: seconds that another rank waits for the store of rank 0.

    Raises:
        LostRankError: a rank did not join, or ended meanwhile.
        UsageError: no address to meet at, or more ranks on this machine than accelerators.
    """
    if dist.is_initialized():
        return
    here = ranks()
    backend, store = backend_of(here), open_store(within)
    with lost_rank_as_error():
        if here.rank == 0:
            store.wait([f"{JOINED}{rank}" for rank in range(1, here.size)], _limit(MEETING))
            store.set(KEY, str(timeout))
        else:
            store.set(f"{JOINED}{here.rank}", "")
            store.wait([KEY], _limit(UNLIMITED))
        limit = _limit(float(store.get(KEY)))
        dist.init_process_group(
            backend, store=store, rank=here.rank, world_size=here.size, timeout=limit
        )


def _limit(seconds: float) -> timedelta:
    """Return a limit, which is named if it passes."""
    global _timeout
    _timeout = seconds
    return timedelta(seconds=seconds)


def backend_of(here: Ranks) -> str:
    """Return the backends of this rank: gloo for the host, NCCL for accelerators.

    Each rank takes the accelerator of its own number on its machine.

    Raises:
        UsageError: there are fewer of them.
    """
    if not torch.cuda.is_available():
        return "gloo"
    if here.local >= torch.cuda.device_count():
        raise UsageError(
            f"rank {here.rank} has no accelerator of its own (this machine has "
            f"{torch.cuda.device_count()}): expected one for each rank of a machine. Start fewer "
            "ranks, or hide the accelerators with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(here.local)
    return "cpu:gloo,cuda:nccl"


@contextmanager
def lost_rank_as_error() -> Iterator[None]:
    """Turn what torch reports of a rank that has ended or stands still into one line.

    Raises:
        LostRankError: a rank has.
    """
    try:
        yield
    except LostRankError:
        raise
    except Exception as error:
        causes = list(_causes(error))
        if not any(map(_is_of_ranks, causes)):
            raise
        late = any(
            word in str(cause).lower() for cause in causes for word in ("timed out", "timeo")
        )
        raise LostRankError(_silence() if late else lost_rank("its connection closed")) from error


def lost_rank(how: str) -> str:
    """Return the line for a rank that has ended, and how that shows."""
    return (
        f"a rank has ended ({how}): expected all {ranks().size} of them to live. "
        "Look at what the other one says, and start again"
    )


def _silence() -> str:
    return (
        f"a rank has not answered for {_timeout:g} s (rank {ranks().rank} waits, `rank_timeout`): "
        "expected every rank to take part. Look whether one stands still or its machine is out of "
        "reach, and start again"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and what it came of: a loader wraps what has happened to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_ranks(error: BaseException) -> bool:
    """Return whether a library says that a rank cannot be reached; gloo's errors have no type."""
    has_own_type = isinstance(error, dist.DistError | ConnectionError)
    return has_own_type or (
        isinstance(error, RuntimeError) and any(name in str(error) for name in ("gloo", "NCCL"))
    )

"""How ranks find each other: by the store that started them, then a heart, then a process group."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from spsbench.errors import UsageError
from spsbench.hardware.heart import Heart, call, listen, take
from spsbench.hardware.ranks import Ranks

PLACE = "spsbench/heart"  # of the store: where rank 0 listens
PATIENCE = timedelta(days=30)  # of the group: a conversation may pause; hearts tell who has gone
OPEN = "/proc/self/fd"


class Meeting:
    """All ranks, each of which makes one.

    Args:
        here: this rank, of two or more.
        within: seconds in which all must come.
        lost: as `Heart` takes it.

    Raises:
        TimeoutError: one of them did not come.
        RuntimeError, OSError: one of them went while they met.
        UsageError: more ranks on this machine than accelerators.
    """

    def __init__(
        self, here: Ranks, within: float, lost: Callable[[int, float | None], None]
    ) -> None:
        backend = backend_of(here)
        until = time.monotonic() + within
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=within)))
            peers = _peers(store, here, until)
        except dist.DistError as error:
            if time.monotonic() < until:
                raise
            raise TimeoutError(str(error)) from error
        self.heart = Heart(peers, here.rank == 0, lost)
        before = _connections()
        dist.init_process_group(
            backend, store=store, rank=here.rank, world_size=here.size, timeout=PATIENCE
        )
        self._links = _connections() - before

    def cut(self) -> None:
        """Shut the links of the process group, so that who waits there is told.

        gloo cannot be asked to give up: its `abort` does nothing while a rank is silent.
        """
        for number, link in self._links & _connections():
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as known:
                if os.readlink(f"{OPEN}/{number}") == link:
                    known.shutdown(socket.SHUT_RDWR)


def _peers(store: Any, here: Ranks, until: float) -> dict[int, socket.socket]:
    """Rank 0 with each other one, by a way of their own beside the process group."""
    if here.rank == 0:
        made, address, port, secret = listen()
        store.set(PLACE, json.dumps([address, port, secret.hex()]))
        return take(made, secret, here.size - 1, until)
    store.wait([PLACE], timedelta(seconds=max(until - time.monotonic(), 1)))
    address, port, told = json.loads(store.get(PLACE))
    return {0: call(address, port, bytes.fromhex(told), here.rank)}


def backend_of(here: Ranks) -> str:
    """What carries tensors: gloo those of the host, NCCL those of accelerators.

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


def _connections() -> set[tuple[int, str]]:
    """The TCP connections of this process: number and name; empty where they cannot be listed."""
    found = set()
    with suppress(OSError):
        for number in map(int, os.listdir(OPEN)):
            with suppress(OSError):
                name = os.readlink(f"{OPEN}/{number}")
                if name.startswith("socket:") and _is_connected(number):
                    found.add((number, name))
    return found


def _is_connected(number: int) -> bool:
    with socket.socket(fileno=os.dup(number)) as known:
        known.getpeername()
        return known.family in (socket.AF_INET, socket.AF_INET6)

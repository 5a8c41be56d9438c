"""Workers that are actors of a Ray cluster: one a device, or so many cores each.

Ray finds them a place, restarts an actor that is lost, and makes its unit again; nodes that join
later are not used.
"""

import logging
import os
import pickle
import signal
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from spsbench.errors import UnavailableError, first_line
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import NO_RAY, Workers
from spsbench.workers.work import TICK, Pool, Runner, Work, worker_lost

log = logging.getLogger(__name__)

REACH = 10.0  # seconds in which whoever is at an address must answer
RETRIES = 4  # Ray's, for a unit whose actor is lost
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray prints a page about a lost worker to standard output
}
PLAIN = {  # Ray's own choices: 15, so that any other work goes first; 30 s, too few on a busy one
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


class RayPool(AbstractContextManager[Pool]):
    """As many actors as the cluster has room for when the run starts.

    `work` gets its `threads`, and how many workers are `beside` each other. `threads` are each
    worker's; None: as many as the smallest node has cores, or 1 core beside a GPU. Each has a GPU
    where `device` is one. UnavailableError: no Ray, no cluster at the address, or no room for a
    worker.
    """

    def __init__(self, settings: Workers, work: Work, threads: int | None, device: str) -> None:
        self._ray = ray = connect_to_ray(settings.argument)
        gpus = int(device.startswith("cuda"))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(node["CPU"]) for node in nodes if node.get("CPU")]
        cpus = threads or (1 if gpus else min(cores, default=1))  # as the smallest has
        needs = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        room = [
            min(int(node.get(kind, 0) // need) for kind, need in needs.items()) for node in nodes
        ]
        self.count = sum(room)
        if not self.count:
            ray.shutdown()
            raise UnavailableError(
                f"no room for a worker (`on` {settings.on}, {cpus} cores, {gpus} GPUs each): "
                "expected a node that has as much. See `ray status`, or give fewer `threads`"
            )
        share = threads or (None if gpus else cpus)
        self._packed = pickle.dumps(replace(work, threads=share, beside=max(room)))
        self._actor = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES
        )(Runner)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Any]] = {}  # result to come -> actor, unit
        log.info(f"Ray {ray.__version__}, {self.count} workers")

    def begin(self, unit: Any) -> None:
        """Begin a unit on an idle actor, or on a new one."""
        actor = self._idle.pop() if self._idle else self._actor.remote(self._packed)
        self._busy[actor.run.remote(unit)] = actor, unit

    def finished(self) -> Iterator[tuple[Any, bytes]]:
        """Yield (unit, packed result) of units that have ended by now, or within a second.

        UnavailableError: Ray has restarted an actor too often over one unit.
        """
        ready, _ = self._ray.wait(list(self._busy), timeout=TICK)
        for result in ready:
            try:
                packed = self._ray.get(result)
            except self._ray.exceptions.RayActorError as error:
                raise worker_lost(first_line(error)) from error
            actor, unit = self._busy.pop(result)
            self._idle.append(actor)
            yield unit, packed

    def __exit__(self, *exception: object) -> None:
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values())):
            self._ray.kill(actor)
        self._ray.shutdown()


def connect_to_ray(address: str) -> Any:
    """Return Ray, connected to the cluster at an address; for "" a cluster is started here.

    Sets variables of Ray that are not set; handlers of SIGINT and SIGTERM stay. UnavailableError:
    Ray is not installed, is connected already, or no cluster is there.
    """
    for name, value in (QUIET if address else QUIET | PLAIN).items():
        os.environ.setdefault(name, value)  # Ray reads some of them while it is imported
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(NO_RAY) from error
    options: dict[str, Any] = {"address": address}
    if not address:  # even beside a cluster that this machine is a part of
        options = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
    numbers = signal.SIGINT, signal.SIGTERM
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        check_reachable(address)
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # some of Ray's are of no kind of their own
        raise UnavailableError(
            f"no cluster ({address or 'of this machine'}: {first_line(error)}): expected Ray "
            "to answer. Start it with `ray start --head`, and give `on` ray:ADDRESS as that "
            "prints it; where that wants a token, set RAY_AUTH_MODE=token here as well"
        ) from error
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)  # Ray sets its own
    return ray


def check_reachable(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT: Ray itself would ask for five minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        name = host.removeprefix("ray://").strip("[]")  # an IPv6 address has these
        socket.create_connection((name, int(port)), REACH).close()

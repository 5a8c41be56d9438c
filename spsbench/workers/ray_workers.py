"""Workers that are actors of a Ray cluster: one a device, or so many cores each.

Ray finds them a place, restarts an actor that is lost, and makes its unit again.
"""

import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spsbench.errors import UnavailableError, first_line
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import NO_RAY, Workers
from spsbench.workers.work import LOSSES, Runner, Work, Worker

log = logging.getLogger(__name__)

REACH = 10.0  # seconds in which whoever is at an address must answer
LOOK = 15.0  # seconds between two looks at which nodes there are
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # of a lost worker Ray prints a page to standard output
}
PLAIN = {  # Ray's own choices: 15, so that any other work goes first; 30 s, too few on a busy one
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


@contextmanager
def ray_workers(
    settings: Workers, work: Work, threads: int | None, device: str
) -> Iterator[tuple[list[Worker], Callable[[], list[Worker]]]]:
    """Start as many actors as the cluster has room for; also a function that starts more by then.

    Args:
        work: gets its `threads`, and how many are `beside` each other.
        threads: that were asked for.
        device: that models run on; each worker has a GPU where it is one.

    Raises:
        UnavailableError: no Ray, no cluster at the address, or one without room for a worker.
    """
    ray = connect(settings.argument)
    workers: list[Worker] = []
    try:
        gpus = int(device.startswith("cuda"))
        cpus = _cores(ray, settings, threads, gpus)
        beside = max(_room(ray, cpus, gpus).values(), default=0)
        if not beside:
            raise UnavailableError(
                f"no room for a worker (`on` {settings.on}, {cpus} cores, {gpus} GPUs each): "
                "expected a node that has as much. See `ray status`, or give `cpus_per_worker`"
            )
        worker_threads = threads or (cpus if not gpus else None)
        packed = pickle.dumps(replace(work, threads=worker_threads, beside=beside))
        actor = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=LOSSES - 1
        )(Actor)
        looked = 0.0

        def more() -> list[Worker]:
            nonlocal looked
            if time.monotonic() - looked < LOOK:
                return []
            looked = time.monotonic()
            count = sum(_room(ray, cpus, gpus).values())
            new: list[Worker] = [
                RayWorker(ray, actor.remote(packed), f"worker {number + 1}")
                for number in range(len(workers), count)
            ]
            return new

        workers += more()
        log.info(f"Ray {ray.__version__}, {len(workers)} workers")
        yield workers, more
    finally:
        for worker in workers:
            worker.end()
        ray.shutdown()


class Actor:
    """A runner in the process of an actor."""

    def __init__(self, packed: bytes) -> None:
        self._runner = Runner(packed)

    def run(self, unit: Any) -> Any:
        """Return the result of a unit."""
        return self._runner.run(unit)

    def niceness(self) -> int:
        """Return how far its process stands back behind others."""
        return niceness()


class RayWorker:
    """An actor, on some node."""

    retries = True

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self.name = ray, actor, name
        actor.niceness.remote().future().add_done_callback(_note_niceness)

    def submit(self, unit: Any) -> "Future[Any]":
        """Begin a unit."""
        future: Future[Any] = self._actor.run.remote(unit).future()
        return future

    def is_lost(self, error: Exception) -> bool:
        """Return whether `error`, of a unit, means that the actor was lost, again and again."""
        return isinstance(error, self._ray.exceptions.RayActorError)

    def revive(self, error: Exception) -> str:
        """Return why the actor was lost; Ray restarts it."""
        return reason(error)

    def end_if_stopped(self) -> None:
        """Leave it to Ray, which knows the node."""

    def end(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._actor)


def niceness() -> int:
    """Return the niceness of this process."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def _note_niceness(future: "Future[int]") -> None:
    if future.exception() is None and future.result() > niceness():
        log.info(
            f"note: workers have niceness {future.result()}: other work on their machines goes "
            "first. Begin the cluster with RAY_worker_niceness=0 ray start ..."
        )


def reason(error: Exception) -> str:
    """Return why, in a line: the last of a traceback says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    traced = any("Traceback" in line for line in lines)
    return (lines[-1] if traced else lines[0] if lines else type(error).__name__)[:200].rstrip(".")


def _room(ray: Any, cpus: int, gpus: int) -> dict[str, int]:
    """Return node -> workers that it holds."""
    room = {}
    for node in ray.nodes():
        has = node["Resources"]
        fit = int(has.get("CPU", 0) // cpus)
        if gpus:
            fit = min(fit, int(has.get("GPU", 0)))
        if node["Alive"] and fit:
            room[node["NodeID"]] = fit
    return room


def _cores(ray: Any, settings: Workers, threads: int | None, gpus: int) -> int:
    """Return the cores of each worker: as asked, else as many as the smallest node has."""
    if settings.cpus_per_worker or threads:
        return settings.cpus_per_worker or threads or 1
    if gpus:
        return 1
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    return max(1, int(min((cpus for cpus in nodes if cpus), default=1)))


def connect(address: str) -> Any:
    """Return Ray, connected to the cluster at an address; without one a cluster is started.

    Raises:
        UnavailableError: Ray is not installed, or no cluster is there.
    """
    for name, value in (QUIET if address else QUIET | PLAIN).items():
        os.environ.setdefault(name, value)  # Ray reads some of them while it is imported
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(NO_RAY) from error
    check_reachable(address)
    options: dict[str, Any] = (
        {"address": address}
        if address
        else {
            "address": "local",  # even beside a cluster that this machine is a part of
            "num_cpus": usable_cores(),
            "include_dashboard": False,
        }
    )
    numbers = signal.SIGINT, signal.SIGTERM
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # some of Ray's are of no kind of their own
        raise no_cluster(address, error) from error
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)  # Ray sets its own
    return ray


def check_reachable(address: str) -> None:
    """Refuse HOST:PORT where nothing listens: Ray itself would ask for five minutes.

    Raises:
        UnavailableError: nothing does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        name = host.removeprefix("ray://").strip("[]")  # of an IPv6 address
        socket.create_connection((name, int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise no_cluster(address, error) from error


def no_cluster(address: str, error: Exception) -> UnavailableError:
    """Return the error where no cluster answers."""
    return UnavailableError(
        f"no cluster ({address or 'of this machine'}: {first_line(error)}): expected Ray "
        "to answer. Start it with `ray start --head`, and give `on` ray:ADDRESS as that "
        "prints it; where that wants a token, set RAY_AUTH_MODE=token here as well"
    )

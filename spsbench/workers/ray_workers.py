"""Workers that are actors of a Ray cluster: one a device, or so many cores each.

Ray finds them a place, restarts an actor that is lost, and makes its unit again; nodes that join
later are not used.
"""

import logging
import os
import pickle
import signal
import socket
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from spsbench.errors import UnavailableError, first_line
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import NO_RAY, Workers
from spsbench.workers.work import Runner, Work, lost

log = logging.getLogger(__name__)

REACH = 10.0  # seconds in which whoever is at an address must answer
RETRIES = 4  # of a unit whose actor is lost, by Ray
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # of a lost worker Ray prints a page to standard output
}
PLAIN = {  # Ray's own choices: 15, so that any other work goes first; 30 s, too few on a busy one
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


class RayPool:
    """As many actors as the cluster has room for when the run starts.

    Args:
        work: gets its `threads`, and how many are `beside` each other.
        threads: that were asked for.
        device: that models run on; each worker has a GPU where it is one.

    Raises:
        UnavailableError: no Ray, no cluster at the address, or one without room for a worker.
    """

    def __init__(self, settings: Workers, work: Work, threads: int | None, device: str) -> None:
        self._ray = ray = connect(settings.argument)
        self._actors: list[Any] = []
        self._futures: list[Future[Any]] = []  # the latest of each actor
        gpus = int(device.startswith("cuda"))
        cpus = threads or _cores(ray, gpus)
        room = _room(ray, cpus, gpus)
        self.count = sum(room)
        if not room:
            ray.shutdown()
            raise UnavailableError(
                f"no room for a worker (`on` {settings.on}, {cpus} cores, {gpus} GPUs each): "
                "expected a node that has as much. See `ray status`, or give fewer `threads`"
            )
        share = threads or (cpus if not gpus else None)
        self._packed = pickle.dumps(replace(work, threads=share, beside=max(room)))
        self._actor = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES
        )(Runner)
        log.info(f"Ray {ray.__version__}, {self.count} workers")

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *exception: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()

    def submit(self, unit: Any) -> "Future[Any]":
        """Begin a unit on an idle actor, or on a new one."""
        idle = next((n for n, future in enumerate(self._futures) if future.done()), None)
        if idle is None:
            idle = len(self._actors)
            self._actors.append(self._actor.remote(self._packed))
            self._futures.append(Future())
        future: Future[Any] = self._actors[idle].run.remote(unit).future()
        self._futures[idle] = future
        return future

    def loss(self, error: Exception) -> UnavailableError | None:
        """Return the line for an actor that Ray has restarted too often over one unit."""
        is_loss = isinstance(error, self._ray.exceptions.RayActorError)
        return lost(reason(error)) if is_loss else None


def reason(error: Exception) -> str:
    """Return why, in a line: the last of a traceback says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    traced = any("Traceback" in line for line in lines)
    return (lines[-1] if traced else lines[0] if lines else type(error).__name__)[:200].rstrip(".")


def _room(ray: Any, cpus: int, gpus: int) -> list[int]:
    """Return the workers that each node holds, without those that hold none."""
    room = []
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        fit = int(resources.get("CPU", 0) // cpus)
        room.append(min(fit, int(resources.get("GPU", 0))) if gpus else fit)
    return [fit for fit in room if fit]


def _cores(ray: Any, gpus: int) -> int:
    """Return the cores of each worker: as many as the smallest node has, or 1 beside a GPU."""
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    return 1 if gpus else max(1, int(min((cpus for cpus in nodes if cpus), default=1)))


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

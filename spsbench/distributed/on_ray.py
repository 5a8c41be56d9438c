"""Workers that are actors of a Ray cluster: one a device, or so many cores each.

Ray finds them a place, notices that one is gone, and carries bytes. What is handed out to whom, and
what becomes of a loss, is the scheduler's affair.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spsbench.distributed.child import answer, unfit
from spsbench.distributed.connection import connected
from spsbench.distributed.protocol import Event, Hand, Joined, Lost, Opener, Piece, Refused
from spsbench.errors import SpsError, UnavailableError
from spsbench.settings.execution import Crew

log = logging.getLogger(__name__)

LOOK = 15.0  # seconds between two looks at which nodes there are


class Post:
    """An actor: a hand that is opened in its process."""

    def __init__(self, name: str, opener: Opener) -> None:
        self.name, self.hand = name, opener()

    def hello(self) -> Any:
        """Its hello, its process, and how far that stands back behind others."""
        return self.hand.hello(), os.getpid(), niceness()

    def work(self, piece: Piece) -> Any:
        """What comes of a piece."""
        return answer(self.name, self.hand, piece)


class RayWorkers:
    """As many as the cluster has room for; more when nodes join it.

    Args:
        opener: makes a hand; is told `threads`, and how many are `beside` each other.
        threads: that were asked for.
        device: that models run on; each worker has a GPU where it is one.

    Raises:
        UnavailableError: no Ray, no cluster at the address, or one without room for a worker.
    """

    def __init__(
        self,
        crew: Crew,
        opener: Callable[..., Hand],
        threads: int | None,
        device: str,
    ) -> None:
        self._ray = connected(crew.rest)
        self._gpus = int(device.startswith("cuda"))
        self._cpus = self._cores(crew, threads)
        beside = max(self._room().values(), default=0)
        if not beside:
            self.close()
            raise UnavailableError(
                f"no room for a worker (--on {crew.on}, {self._cpus} cores and {self._gpus} GPUs "
                "each): expected a node that has as much. See `ray status`, or give "
                "--cpus-per-worker"
            )
        own = threads or (self._cpus if not self._gpus else None)
        self._opener = self._ray.put(partial(opener, threads=own, beside=beside))
        self._number, self._looked = 0, time.monotonic()
        self._actors: dict[str, Any] = {}
        self._awaited: dict[Any, str] = {}  # reference -> worker
        self._joined: dict[str, int] = {}  # worker -> its process
        self._fill()
        log.info(f"Ray {self._ray.__version__}, {len(self._actors)} workers")

    @property
    def coming(self) -> int:
        """Those that there is room for."""
        return len(self._actors)

    def pids(self) -> dict[str, int]:
        """Worker -> its process, on its own node."""
        return dict(self._joined)

    def give(self, worker: str, piece: Piece) -> None:
        """Its answer is waited for; that of a dead one is an error, at once."""
        self._awaited[self._actors[worker].work.remote(piece)] = worker

    def wait(self, seconds: float) -> Sequence[Event]:
        """What they have answered, and who is gone."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._fill()
        if not self._awaited:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._awaited), num_returns=1, timeout=seconds)
        if ready:  # and all others that are
            most = len(self._awaited)
            ready, _ = self._ray.wait(list(self._awaited), num_returns=most, timeout=0)
        return [self._event(reference) for reference in ready]

    def close(self) -> None:
        """End the actors; a cluster that was started here ends as well."""
        for actor in getattr(self, "_actors", {}).values():
            self._ray.kill(actor)
        self._ray.shutdown()

    def _event(self, reference: Any) -> Event:
        worker = self._awaited.pop(reference)
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            return self._gone(worker, error)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, SpsError):
                return Refused(worker, cause)
            if worker in self._joined:  # its answer is lost, and so may it be
                self._ray.kill(self._actors[worker])
                return self._gone(worker, error)
            return Refused(worker, unfit(reason(error)))
        if worker in self._joined:
            answered: Event = found
            return answered
        hello, process, nice = found
        self._joined[worker] = process
        if nice > niceness():
            log.info(
                f"note: workers have niceness {nice}: other work on their machines goes first. "
                "Begin the cluster with RAY_worker_niceness=0 ray start ..."
            )
        return Joined(worker, hello)

    def _gone(self, worker: str, error: Exception) -> Event:
        began = worker in self._joined
        self._joined.pop(worker, None)
        del self._actors[worker]
        self._fill()
        if not began and "ModuleNotFoundError" in str(error):
            return Refused(worker, unfit(reason(error)))
        return Lost(worker, reason(error))

    def _fill(self) -> None:
        """Ask for as many as there is room for; Ray starts each when it has found its place."""
        for _ in range(sum(self._room().values()) - len(self._actors)):
            self._number += 1
            name = f"worker {self._number}"
            kind = self._ray.remote(num_cpus=self._cpus, num_gpus=self._gpus)(Post)
            self._actors[name] = kind.remote(name, self._opener)
            self._awaited[self._actors[name].hello.remote()] = name

    def _room(self) -> dict[str, int]:
        """Node -> workers that it holds."""
        found = {}
        for node in self._ray.nodes():
            has = node["Resources"]
            fit = int(has.get("CPU", 0) // self._cpus)
            if self._gpus:
                fit = min(fit, int(has.get("GPU", 0)))
            if node["Alive"] and fit:
                found[node["NodeID"]] = fit
        return found

    def _cores(self, crew: Crew, threads: int | None) -> int:
        """Of each worker: as asked, else as many as the smallest node has."""
        if crew.cpus_per_worker or threads:
            return crew.cpus_per_worker or threads or 1
        if self._gpus:
            return 1
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        return max(1, int(min((cpus for cpus in nodes if cpus), default=1)))


def niceness() -> int:
    """Of this process."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def reason(error: Exception) -> str:
    """Why, in a line: the last of a traceback says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    traced = any("Traceback" in line for line in lines)
    return (lines[-1] if traced else lines[0] if lines else type(error).__name__)[:200].rstrip(".")

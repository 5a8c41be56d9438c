"""Map units of work over workers: processes of this machine, or Ray actors.

A unit counts as done once `take` has returned, which makes it durable: one process writes. A worker
that ends ends the run; a resumed run makes the units that are missing.
"""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import PROCESSES, Workers
from spsbench.workers.work import TICK, Pool, Runner, Work, worker_lost

SET_PARENT_DEATH_SIGNAL = 1  # an option of prctl
PROGRAM = (
    "import sys; sys.path[:] = {}; from spsbench.workers.map_units import serve_units; "
    "serve_units({})"
)


def map_units(
    settings: Workers,
    work: Work,
    units: Iterable[Any],
    take: Callable[[Any, Any], None],
    *,
    threads: int | None = None,
    device: str = "cpu",
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Have workers make all units, one at a time each, until `stop` says so.

    A unit is taken when a worker is free. `take` gets it with its result, or with the exception
    that it raised, in the order in which they end; what it writes is on disk when it returns.
    `threads` are each worker's (None: its share of the machine), `device` is where Ray's workers
    compute. `stop` is asked at least once a second; once it is true workers are ended with what
    they are at. Raises UnavailableError where there is no worker or one has ended, and the error of
    a worker that cannot prepare.
    """
    waiting, running = iter(units), 0
    with pool_of(settings, work, threads, device) as pool:
        while not stop():
            for unit in islice(waiting, pool.count - running):
                pool.begin(unit)
                running += 1
            if not running:
                return
            for unit, packed in pool.finished():
                can_work, result = pickle.loads(packed)
                if not can_work:
                    raise result
                running -= 1
                take(unit, result)


def pool_of(
    settings: Workers, work: Work, threads: int | None, device: str
) -> AbstractContextManager[Pool]:
    """Return workers of `threads` each (None: a share), Ray's on `device`; the context ends them.

    UnavailableError: no Ray, no cluster, or no room for a worker in it.
    """
    if settings.kind == PROCESSES:
        count = int(settings.argument)
        share = threads or max(1, usable_cores() // count)
        return ProcessPool(count, replace(work, threads=share, beside=count))
    from spsbench.workers.ray_workers import RayPool

    return RayPool(settings, work, threads, device)


class ProcessPool(AbstractContextManager[Pool]):
    """Processes that take units from a pipe, started as they are needed."""

    def __init__(self, count: int, work: Work) -> None:
        self.count = count
        self._first = os.getpid(), pickle.dumps(work)
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        self._busy: dict[Connection, Any] = {}  # with their units

    def begin(self, unit: Any) -> None:
        """Begin a unit, which `finished` yields, in an idle process or a new one."""
        idle = self._processes.keys() - self._busy.keys()
        pipe = idle.pop() if idle else self._started()
        self._busy[pipe] = unit
        with suppress(ConnectionError):  # it has ended, as `finished` says
            pipe.send(unit)

    def finished(self) -> Iterator[tuple[Any, bytes]]:
        """Yield (unit, packed result) of units that have ended by now, or within a second.

        UnavailableError: a process has ended; it names the signal or exit code.
        """
        ready: list[Any] = wait(list(self._busy), TICK)
        for pipe in ready:
            try:
                packed = pipe.recv_bytes()
            except (EOFError, ConnectionError) as error:
                code = self._processes[pipe].wait()
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise worker_lost(name) from error
            yield self._busy.pop(pipe), packed

    def _started(self) -> Connection:
        """Start a worker, beyond the reach of Ctrl-C, send it the work, and return its pipe."""
        pipe, worker_end = Pipe()
        handle = worker_end.fileno()
        program = PROGRAM.format(sys.path, handle)
        self._processes[pipe] = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[handle],
            process_group=0,
        )
        worker_end.close()
        with suppress(ConnectionError):  # it has ended, as `finished` says
            pipe.send(self._first)
        return pipe

    def __exit__(self, *exception: object) -> None:
        """Kill the processes: what they were at is not recorded, and a resumed run makes it."""
        for pipe, process in self._processes.items():
            process.kill()
            process.wait()
            pipe.close()


def serve_units(handle: int) -> None:
    """Send the result of each unit that the pipe with file descriptor `handle` brings.

    Its first message is (the driver's process id, the pickled work). It ends with the driver.
    """
    pipe = Connection(handle)
    driver, packed = pipe.recv()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != driver:  # it has ended before
            return
    runner = Runner(packed)
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send_bytes(runner.run(pipe.recv()))

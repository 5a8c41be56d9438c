"""Map units of work over workers: processes of this machine (concurrent.futures), or Ray actors.

A unit counts as done once `take` has returned, which makes it durable: one process writes. A worker
that ends ends the run; a resumed run makes the units that are missing. What the driver keeps grows
with the workers, never with the units.
"""

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing import active_children, get_context
from types import ModuleType
from typing import Any, Protocol

from spsbench.errors import UnavailableError
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import PROCESSES, Workers
from spsbench.workers.work import Failure, Refusal, Runner, Work, failure, lost

TICK = 1.0  # seconds between two looks at `stop`
SAFE_PATH = "PYTHONSAFEPATH"
SET_PARENT_DEATH_SIGNAL = 1  # of prctl


class Pool(Protocol):
    """Workers, each of which makes a unit at a time."""

    count: int

    def submit(self, unit: Any) -> "Future[Any]":
        """Begin a unit; at most `count` are begun at once."""

    def loss(self, error: Exception) -> UnavailableError | None:
        """Return the line for a worker that has ended; None: `error` is of the unit alone."""


def map_units(
    settings: Workers,
    work: Work,
    units: Iterable[Any],
    *,
    threads: int | None = None,
    device: str = "cpu",
    take: Callable[[Any, Any], None],
    give_up: Callable[[Any, str], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Have workers make all units, one at a time each, until `stop` says so.

    Args:
        settings: which workers.
        units: taken one at a time, as workers become free.
        threads: of each worker, as the user asked; None = its share of the machine.
        device: that models run on.
        take: takes a unit and its result; the result is on disk when `take` returns.
        give_up: takes a unit that failed, and why.

    Raises:
        UnavailableError: no worker, or one that has ended.
        SpsError: what a worker says that cannot work.
    """
    waiting = iter(units)
    running: dict[Future[Any], Any] = {}
    with pool_of(settings, work, threads, device) as pool:

        def hand_out() -> None:
            for unit in islice(waiting, pool.count - len(running)):
                running[pool.submit(unit)] = unit

        hand_out()
        while running and not stop():
            for future in wait(running, TICK, FIRST_COMPLETED).done:
                unit = running.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    if loss := pool.loss(error):
                        raise loss from error
                    result = failure(error)  # such as a result that does not pickle
                if isinstance(result, Refusal):
                    raise result.error
                hand_out()  # before `take`, so that no worker waits for the disk
                if isinstance(result, Failure):
                    give_up(unit, result.line)
                else:
                    take(unit, result)


def pool_of(
    settings: Workers, work: Work, threads: int | None, device: str
) -> AbstractContextManager[Pool]:
    """Return workers, which end with the context.

    Raises:
        UnavailableError: no Ray, or no cluster.
    """
    if settings.kind == PROCESSES:
        count = int(settings.argument)
        share = threads or max(1, usable_cores() // count)
        return ProcessPool(count, replace(work, threads=share, beside=count))
    from spsbench.workers.ray_workers import RayPool

    return RayPool(settings, work, threads, device)


class ProcessPool(AbstractContextManager[Pool]):
    """Processes of this machine, which end with the driver, even a killed one."""

    def __init__(self, count: int, work: Work) -> None:
        self.count = count
        initargs = pickle.dumps(work), os.getpid()
        self._executor = ProcessPoolExecutor(count, get_context("spawn"), _start, initargs)
        self._processes: set[Any] = set()

    def submit(self, unit: Any) -> "Future[Any]":
        """Begin a unit, in a new process where none is idle."""
        others = set(active_children())
        try:
            with spawning():
                future = self._executor.submit(_run, unit)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        self._processes |= set(active_children()) - others
        return future

    def loss(self, error: Exception) -> UnavailableError | None:
        """Return the line for a process that has ended, with its signal or exit code."""
        if not isinstance(error, BrokenProcessPool):
            return None
        for process in self._processes:  # the executor terminates the others
            process.join(TICK)
        codes = {process.exitcode for process in self._processes} - {None, 0, -signal.SIGTERM}
        code = min(codes, default=-signal.SIGTERM)
        return lost(signal.Signals(-code).name if code < 0 else f"exit code {code}")

    def __exit__(self, *exception: object) -> None:
        """Kill the processes: what they were at is not recorded, and a resumed run makes it."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        self._executor.shutdown(cancel_futures=True)


@contextmanager
def spawning() -> Iterator[None]:
    """Let processes start with SIGINT blocked, and without the caller's script or directory.

    The script may have no guard against being imported again.
    """
    main, safe_path = sys.modules["__main__"], os.environ.get(SAFE_PATH)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"], os.environ[SAFE_PATH] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        os.environ.pop(SAFE_PATH)
        if safe_path is not None:
            os.environ[SAFE_PATH] = safe_path
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_runner: list[Runner] = []  # of a worker


def _start(packed: bytes, driver: int) -> None:
    """Begin in the process of a worker: end with the driver, and print nothing to its output."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != driver:  # it has ended before
            os.kill(os.getpid(), signal.SIGKILL)
    os.environ.pop(SAFE_PATH, None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _runner.append(Runner(packed))


def _run(unit: Any) -> Any:
    return _runner[0].run(unit)

"""Map units of work over workers: processes of this machine (concurrent.futures), or Ray actors.

A unit counts as done once `take` has returned, which makes it durable: one process writes. Until
then the unit is in flight, and is made again if its worker is lost. What the driver keeps grows
with the workers, never with the units.

`map_units` is the driver, `LocalWorker` a process of this machine; `work.py` says what a worker
does, and `ray_workers.py` has those of a cluster.
"""

import logging
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from spsbench.errors import UnavailableError
from spsbench.hardware.environment import usable_cores
from spsbench.hardware.ranks import end_with_parent
from spsbench.settings.execution import PROCESSES, Workers
from spsbench.workers.work import LOSSES, Failure, Refusal, Runner, Work, Worker, failure

log = logging.getLogger(__name__)

TRIES = 3  # failures of a unit, after which it is given up
STILLBORN = 3  # losses for each worker before any unit is done, after which the run ends
TICK = 1.0  # seconds between two looks at the workers
STOPPED = 10.0  # seconds that a worker may be stopped (SIGSTOP) before it is replaced
SAFE_PATH = "PYTHONSAFEPATH"


class Attempt(NamedTuple):
    """A unit, and what became of it before."""

    unit: Any
    failures: int = 0
    losses: int = 0


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
    watch: Callable[[int, int], None] = lambda workers, losses: None,
    losses: int = LOSSES,
) -> None:
    """Have workers make all units, one at a time each, until `stop` says so.

    Args:
        settings: which workers.
        units: taken one at a time, as workers become free.
        threads: of each worker, as the user asked; None = its share of the machine.
        device: that models run on.
        take: takes a unit and its result; the result is on disk when `take` returns.
        give_up: takes a unit that failed too often, and why.
        watch: takes how many workers there are and how many were lost, now and then.
        losses: workers that may be lost over one unit.

    Raises:
        UnavailableError: no worker, or none that lives.
        SpsError: what a worker says that cannot work.
    """
    left, again = iter(units), deque[Attempt]()
    flights: dict[Future[Any], tuple[Worker, Attempt]] = {}
    lost = done = 0
    with workers_of(settings, work, threads, device) as (workers, more):
        idle = deque(workers)

        def hand_out() -> None:
            while idle:
                if again and done:  # before that, one deadly unit is not to end all workers
                    attempt = again.popleft()
                elif (unit := next(left, left)) is not left:
                    attempt = Attempt(unit)
                elif again:
                    attempt = again.popleft()
                else:
                    return
                worker = idle.popleft()
                flights[worker.submit(attempt.unit)] = worker, attempt

        def retry(attempt: Attempt, error: str) -> None:
            if attempt.failures >= TRIES or attempt.losses >= losses:
                give_up(attempt.unit, error)
            else:
                again.append(attempt)

        while not stop():
            hand_out()
            if not flights:
                return
            for worker, _ in flights.values():
                worker.end_if_stopped()
            for future in wait(flights, TICK, FIRST_COMPLETED).done:
                worker, attempt = flights.pop(future)
                idle.append(worker)
                try:
                    result = future.result()
                except Exception as error:
                    if not worker.is_lost(error):  # such as a result that does not pickle
                        line = failure(error).line
                        retry(attempt._replace(failures=attempt.failures + 1), line)
                        continue
                    name, lost = worker.name, lost + 1
                    reason = worker.revive(error)
                    log.info(f"note: {name} is lost ({reason}): its unit is made again")
                    if not done and (worker.retries or lost > STILLBORN * len(workers)):
                        raise UnavailableError(
                            f"workers end before they begin ({reason}): expected them to load "
                            "their models. See their logs, and continue with `resume`"
                        ) from error
                    added = losses if worker.retries else 1
                    line = f"worker lost: {reason}"
                    retry(attempt._replace(losses=attempt.losses + added), line)
                    continue
                if isinstance(result, Refusal):
                    raise result.error
                if isinstance(result, Failure):
                    retry(attempt._replace(failures=attempt.failures + 1), result.line)
                    continue
                done += 1
                hand_out()  # before `take`, so that no worker waits for the disk
                take(attempt.unit, result)
                watch(len(workers), lost)
            new = more()
            workers.extend(new)
            idle.extend(new)
            watch(len(workers), lost)


@contextmanager
def workers_of(
    settings: Workers, work: Work, threads: int | None, device: str
) -> Iterator[tuple[list[Worker], Callable[[], list[Worker]]]]:
    """Start workers and end them afterwards; also how to get more, where there is room by then.

    Raises:
        UnavailableError: no Ray, or no cluster.
    """
    if settings.kind == PROCESSES:
        count = int(settings.argument)
        worker_threads = settings.cpus_per_worker or threads or max(1, usable_cores() // count)
        packed = pickle.dumps(replace(work, threads=worker_threads, beside=count))
        workers: list[Worker] = [LocalWorker(packed, f"process {n + 1}") for n in range(count)]
        try:
            yield workers, list[Worker]
        finally:
            for worker in workers:
                worker.end()
    else:
        from spsbench.workers.ray_workers import ray_workers

        with ray_workers(settings, work, threads, device) as ray:
            yield ray


class LocalWorker:
    """A process of this machine: an executor of its own, so that its loss breaks no other one.

    It ends with the driver, even a killed one, and leaves Ctrl-C to it.
    """

    retries = False

    def __init__(self, packed: bytes, name: str) -> None:
        self._packed, self._first, self.name, self._lives = packed, name, name, 1
        self._stopped: float | None = None  # since when
        self._context, self._pool = self._started()

    def submit(self, unit: Any) -> "Future[Any]":
        """Begin a unit."""
        try:
            return self._pool.submit(_run, unit)
        except BrokenProcessPool as error:  # it ended while it was idle
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken

    def is_lost(self, error: Exception) -> bool:
        """Return whether `error`, of a unit, means that the process has ended."""
        return isinstance(error, BrokenProcessPool)

    def revive(self, error: Exception) -> str:
        """Start another process; return why this one has ended."""
        self.end()
        code = self._context.process.exitcode or 0
        self._lives += 1
        self.name, self._stopped = f"{self._first} (start {self._lives})", None
        self._context, self._pool = self._started()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def end_if_stopped(self) -> None:
        """Kill the process if it has been stopped for `STOPPED` seconds."""
        if not is_stopped(self._context.process.pid):
            self._stopped = None
        elif self._stopped is None:
            self._stopped = time.monotonic()
        elif time.monotonic() - self._stopped > STOPPED:
            log.info(f"note: {self.name} has stood still for {STOPPED:g} s: it is ended")
            self._context.process.kill()

    def end(self) -> None:
        """Kill the process: what it was at is not recorded, and is made again."""
        if self._context.process is not None and self._context.process.is_alive():
            self._context.process.kill()
        self._pool.shutdown(cancel_futures=True)

    def _started(self) -> "tuple[QuietSpawn, ProcessPoolExecutor]":
        """Return a pool of one process, which starts with its first unit."""
        context = QuietSpawn()
        initargs = self._packed, os.getpid()
        return context, ProcessPoolExecutor(1, context, initializer=_start, initargs=initargs)


def is_stopped(pid: int | None) -> bool:
    """Return whether a process of this machine is stopped, on Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


class GuardlessProcess(SpawnProcess):
    """A process that does not import the caller's script again, which may have no guard."""

    def start(self) -> None:
        """Start it with SIGINT blocked, and without the working directory on its path."""
        main, before = sys.modules["__main__"], os.environ.get(SAFE_PATH)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        sys.modules["__main__"], os.environ[SAFE_PATH] = ModuleType("__main__"), "1"
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main
            os.environ.pop(SAFE_PATH)
            if before is not None:
                os.environ[SAFE_PATH] = before
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class QuietSpawn(SpawnContext):
    """The spawn context with such a process, which it remembers."""

    process: Any = None

    def Process(self, *args: Any, **named: Any) -> GuardlessProcess:  # type: ignore[override] # noqa: N802
        """Make the process."""
        process = self.process = GuardlessProcess(*args, **named)
        return process


_runner: list[Runner] = []  # of a worker


def _start(packed: bytes, driver: int) -> None:
    """Begin in the process of a worker: end with the driver, and print nothing to its output."""
    end_with_parent(driver, signal.SIGKILL)
    os.environ.pop(SAFE_PATH, None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _runner.append(Runner(packed))


def _run(unit: Any) -> Any:
    return _runner[0].run(unit)

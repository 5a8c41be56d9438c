"""Programs run side by side; those that only the wall clock ended, again and alone."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Barrier

from spsbench.sandbox import runner
from spsbench.sandbox.levels import BusyError, Level, Outcome, ProgramLimits
from spsbench.sandbox.runner import retry_while_busy, run
from spsbench.tasks.program_texts import Program

Told = Callable[[Program, Outcome], None]


def judge(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    *,
    workers: int,
    told: Told,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run each program and tell its outcome, in whatever order they end.

    A machine under load must not cost a program its pass: what ran out of time with processor time
    left is run once more when nothing else is, and that verdict stands.

    Raises:
        SandboxError: the sandbox broke; what was not told is not judged.
    """
    again: list[Program] = []

    def take(program: Program, outcome: Outcome) -> None:
        if outcome.wall_only:
            again.append(program)
        else:
            told(program, outcome)

    try:
        _side_by_side(programs, level, limits, workers, take, stop)
        for program in again:
            if stop():
                return
            told(program, run(level, program.source, limits))
    finally:
        runner.wait_for_orphans()


def _side_by_side(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    workers: int,
    take: Told,
    stop: Callable[[], bool],
) -> None:
    waiting = iter(programs)
    running: dict[Future[Outcome], Program] = {}
    # The kernel ends a program with the thread that started it: threads that stay, as the pool's.
    with retry_while_busy(lambda: _staffed(workers)) as pool:
        try:
            while True:
                room = 0 if stop() else 2 * workers - len(running)
                for program in islice(waiting, room):
                    running[pool.submit(run, level, program.source, limits)] = program
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    take(running.pop(done), done.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _staffed(workers: int) -> ThreadPoolExecutor:
    """A pool all of whose threads run: once programs do, there may be no room for another."""
    pool, together = ThreadPoolExecutor(workers), Barrier(workers)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(workers)]:
            waiting.result()
    except RuntimeError as error:  # the only sign of it
        together.abort()
        pool.shutdown()
        raise BusyError(f"{workers} at a time: {error}") from error
    return pool

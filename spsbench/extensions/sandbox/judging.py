"""Parallel runs of programs; those that only the wall clock ended run again, alone."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Barrier

from spsbench.extensions.sandbox import runner
from spsbench.extensions.sandbox.levels import BusyError, Level, ProgramLimits
from spsbench.extensions.sandbox.runner import retry_while_busy, run
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome

Report = Callable[[Program, Outcome], None]


def judge(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    *,
    workers: int,
    report: Report,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run each program and report its outcome, in the order in which programs end.

    Load on the machine must not cost a program its pass: a program that ran out of wall-clock time
    with processor time left runs once more when no other runs, and that verdict is final.

    Raises:
        SandboxError: the sandbox failed; programs without a reported outcome are not judged.
    """
    again: list[Program] = []

    def take(program: Program, outcome: Outcome) -> None:
        if outcome.wall_only:
            again.append(program)
        else:
            report(program, outcome)

    try:
        _side_by_side(programs, level, limits, workers, take, stop)
        for program in again:
            if stop():
                return
            report(program, run(level, program.source, limits))
    finally:
        runner.wait_for_orphans()


def _side_by_side(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    workers: int,
    take: Report,
    stop: Callable[[], bool],
) -> None:
    waiting = iter(programs)
    running: dict[Future[Outcome], Program] = {}
    # The kernel ends a program with the thread that started it, so the pool's threads stay alive.
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
    """Return a pool with all threads started; later the system may have no room for one."""
    pool, together = ThreadPoolExecutor(workers), Barrier(workers)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(workers)]:
            waiting.result()
    except RuntimeError as error:  # Python's error for a thread that cannot start
        together.abort()
        pool.shutdown()
        raise BusyError(f"{workers} at a time: {error}") from error
    return pool

"""Many programs over a few cores; those that only waited too long are run again, alone."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.program import run
from spsbench.sandbox.verdict import Outcome

Key = TypeVar("Key", bound=Hashable)


def outcomes(
    programs: Iterable[tuple[Key, str]],
    level: Level,
    limits: Limits,
    workers: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Key, Outcome]]:
    """The outcome of each program as it comes, in no order.

    A program that hits the wall clock, but not its processor time, may have been kept waiting by
    the others: it is run once more when they are done, and that is its outcome. `stop` ends it
    between programs.

    Raises:
        SandboxError: the level failed; what has no outcome was not judged.
    """
    queue = iter(programs)
    waited: list[tuple[Key, str]] = []
    with ThreadPoolExecutor(workers) as pool:
        running: dict[Future[Outcome], tuple[Key, str]] = {}
        try:
            while not stop():
                for key, program in islice(queue, 2 * workers - len(running)):
                    running[pool.submit(run, program, level, limits)] = key, program
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    key, program = running.pop(done)
                    outcome = done.result()
                    if outcome.by_wall:
                        waited.append((key, program))
                    else:
                        yield key, outcome
        finally:
            for future in running:
                future.cancel()
    for key, program in waited:
        if stop():
            return
        yield key, run(program, level, limits)

"""Who works, as the command line names them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from spsbench.distributed.processes import Processes
from spsbench.distributed.protocol import Hand, Workers
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import PROCESSES, Crew


@contextmanager
def workers_of(
    crew: Crew, opener: Callable[..., Hand], threads: int | None, device: str
) -> Iterator[Workers]:
    """The workers of a crew, ended afterwards.

    Args:
        opener: makes a hand; is told `threads`, and how many are `beside` each other.
        threads: that were asked for.
        device: that models run on.

    Raises:
        UnavailableError: no Ray, or no cluster.
    """
    if crew.kind == PROCESSES:
        made: Any = _processes(crew, opener, threads)
    else:
        from spsbench.distributed.on_ray import RayWorkers

        made = RayWorkers(crew, opener, threads, device)
    try:
        yield made
    finally:
        made.close()


def _processes(crew: Crew, opener: Callable[..., Hand], threads: int | None) -> Processes:
    count = int(crew.rest)
    own = crew.cpus_per_worker or threads or max(1, usable_cores() // count)
    return Processes(partial(opener, threads=own, beside=count), count)

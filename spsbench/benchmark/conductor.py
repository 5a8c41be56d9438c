"""The base of conductors of runs, plans and trainings: folder, progress, stopping, workers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from spsbench.messages import ignore
from spsbench.settings.execution import Access, OutputFolder

Progress = TypeVar("Progress")
Pool = TypeVar("Pool")


def never() -> bool:
    """Return False: the default of `stop`."""
    return False


@dataclass(kw_only=True)
class Conductor(Generic[Progress, Pool]):
    """Work that fills a folder, is watched, can be stopped, and goes on where it was.

    Args:
        place: the folder, and whether to go on with what is in it.
        access: offline mode, pickle files and threads.
        watch: called with the progress.
        stop: polled between pieces of work; True ends the work and keeps finished pieces.
        pool: workers that make the pieces; None: this process.
    """

    place: OutputFolder
    access: Access
    watch: Callable[[Progress], None] = ignore
    stop: Callable[[], bool] = never
    pool: Pool | None = None

    @staticmethod
    def use_threads(threads: int | None) -> None:
        """Give torch that many threads; None leaves its own choice."""
        if threads is not None:
            torch.set_num_threads(threads)

"""The base of conductors of runs, plans and trainings: folder, progress, stopping, workers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from spsbench.messages import ignore
from spsbench.settings.execution import Access, OutputFolder, Workers


def never() -> bool:
    """Return False: the default of `stop`."""
    return False


@dataclass(kw_only=True)
class Conductor:
    """Work that fills a folder, is watched, can be stopped, and goes on where it was.

    Args:
        place: the folder, and whether to go on with what is in it.
        access: offline mode, pickle files and threads.
        watch: called with the progress.
        stop: polled between pieces of work; True ends the work and keeps finished pieces.
        workers: what makes the pieces; this process, by default.
    """

    place: OutputFolder
    access: Access
    watch: Callable[[Any], None] = ignore
    stop: Callable[[], bool] = never
    workers: Workers = Workers()  # frozen

    @staticmethod
    def use_threads(threads: int | None) -> None:
        """Give torch that many threads; None leaves its own choice."""
        if threads is not None:
            torch.set_num_threads(threads)

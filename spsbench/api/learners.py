"""Processes that learn together: whether those that were asked for are there."""

from spsbench.errors import UsageError
from spsbench.hardware.ranks import MissingRanksError, ranks


def check_learners(parallel: str | None, device: str) -> None:
    """Refuse `--parallel dp` where its processes are not there.

    Raises:
        MissingRanksError: there is one process alone.
        UsageError: torchrun started another number of them, or none.
    """
    wanted = None if parallel in (None, "dp") else int(str(parallel).removeprefix("dp:"))
    size = ranks().size
    if size == 1 and wanted is not None:
        raise MissingRanksError("a training", wanted, device)
    if size == 1 and parallel == "dp":
        raise UsageError(
            "--parallel dp without torchrun: expected ranks that it started. Say how many to "
            "start: --parallel dp:2"
        )
    if wanted is not None and wanted != size:
        raise UsageError(
            f"--parallel {parallel} under torchrun with {size} ranks: expected as many. Say "
            "--parallel dp"
        )

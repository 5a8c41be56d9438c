"""Ranks: whether those that were asked for are there, and what each but the first does."""

from collections.abc import Iterable

from spsbench.errors import UsageError
from spsbench.hardware.ranks import RANK_TIMEOUT, MissingRanksError, ranks
from spsbench.models.config import check_divisible, read_config
from spsbench.models.folder import local_folder
from spsbench.models.gguf.header import named_gguf
from spsbench.settings.models import CHECKPOINT, ModelSpec


def check_ranks(models: Iterable[ModelSpec], timeout: float = RANK_TIMEOUT) -> None:
    """Join the ranks that share a model, or refuse where they are not there.

    Args:
        models: of all cells.
        timeout: seconds after which a rank that does not answer is lost.

    Raises:
        MissingRanksError: there is one process alone.
        UsageError: models that are shared by different numbers of ranks, or have no weights.
        DataError: a model in a folder whose heads do not divide by its ranks.
        LostRankError: not all ranks come.
    """
    shared = [model for model in models if model.ranks > 1]
    if len(sizes := {model.ranks for model in shared}) > 1:
        given = " and ".join(map(str, sorted(sizes)))
        raise UsageError(
            f"models over {given} ranks: expected the same number for all. Change --parallel"
        )
    if odd := next((model for model in shared if model.weights != CHECKPOINT), None):
        raise UsageError(
            f"--parallel with --weights {odd.weights}: expected a checkpoint, of which each "
            "rank reads its share. Leave one of them out"
        )
    for model in shared:
        folder = None if named_gguf(model.id) else local_folder(model.id)
        if folder is not None:
            check_divisible(read_config(folder), model.ranks, folder)
    if shared and ranks().size == 1:
        raise MissingRanksError(str(shared[0]), shared[0].ranks, shared[0].device)
    if shared:
        from spsbench.distributed.process_group import connect

        connect(timeout)


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


def follow(within: float | None = None) -> None:
    """Hold shares of rank 0's models and run its passes, on every rank but the first, to the end.

    Args:
        within: seconds to wait for rank 0's first model; None: as long as it takes.

    Raises:
        LostRankError: a rank has ended or stands still.
        SpsError: a model that cannot be loaded here.
    """
    from spsbench.distributed.process_group import UNLIMITED
    from spsbench.distributed.tensor_parallel import Follower
    from spsbench.models.shares import load_share

    Follower(load_share, UNLIMITED if within is None else within).serve()


def dismiss() -> None:
    """Let the other ranks go, from rank 0."""
    from spsbench.distributed.tensor_parallel import end

    end()

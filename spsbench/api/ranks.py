"""Ranks that share a model: whether they are there, and what the others do while rank 0 leads."""

from collections.abc import Callable, Iterable

from spsbench.errors import UsageError
from spsbench.hardware.heart import be_patient
from spsbench.hardware.ranks import MissingRanksError, ranks
from spsbench.models.description import read_config
from spsbench.models.folder import local_folder
from spsbench.models.gguf.header import named_gguf
from spsbench.models.shareable import check_divided
from spsbench.settings.models import CHECKPOINT, ModelSpec

TOGETHER = 300.0  # seconds in which ranks that a command starts must have come to each other


def check_ranks(models: Iterable[ModelSpec], patience: float | None = None) -> None:
    """Refuse a shared model where its ranks are not there.

    Args:
        models: of all cells.
        patience: seconds of silence after which a rank is lost; None: as it is.

    Raises:
        MissingRanksError: there is one process alone.
        UsageError: models that are shared by different numbers of ranks, or have no weights.
        DataError: a model in a folder whose heads do not divide by its ranks.
    """
    shared = [model for model in models if model.ranks > 1]
    if len(sizes := {model.ranks for model in shared}) > 1:
        told = " and ".join(map(str, sorted(sizes)))
        raise UsageError(
            f"models over {told} ranks: expected the same number for all. Change --parallel"
        )
    if odd := next((model for model in shared if model.weights != CHECKPOINT), None):
        raise UsageError(
            f"--parallel with --weights {odd.weights}: expected a checkpoint, of which each "
            "rank reads its share. Leave one of them out"
        )
    for model in shared:
        folder = None if named_gguf(model.id) else local_folder(model.id)
        if folder is not None:
            check_divided(read_config(folder), model.ranks, folder)
    if shared and ranks().size == 1:
        raise MissingRanksError(str(shared[0]), shared[0].ranks, shared[0].device)
    if patience is not None:
        be_patient(patience)


def meet(ends: Callable[[str], None]) -> None:
    """A program of ranks, on each of them, first of all: wait for the others, watch over them.

    A library need not: there they meet when rank 0 loads a shared model, whenever that is.

    Args:
        ends: ends this process with a line, where another rank is lost and nothing else wakes it.

    Raises:
        LostRankError: they do not come, or one of them has gone.
        SpsError: an environment in which torch cannot work.
    """
    from spsbench.api.prepare import check_environment, check_packages

    check_environment()
    check_packages()

    from spsbench.engines.channel import channel

    agree(ends)
    channel()


def agree(ends: Callable[[str], None]) -> None:
    """Ranks that do the same work, each of them, before they meet.

    Args:
        ends: as `meet` takes it.
    """
    from spsbench.engines import company

    company.agree(company.Terms(TOGETHER, ends))


def follow() -> None:
    """Every rank but the first: hold shares of rank 0's models, and run its passes, to its end.

    Raises:
        LostRankError: rank 0 has gone, or another rank.
        SpsError: a model that cannot be loaded here.
    """
    from spsbench.engines.shared import Hands
    from spsbench.models.shares import load_share

    Hands(load_share).serve()


def dismiss() -> None:
    """Rank 0: let the other ranks go."""
    from spsbench.engines.channel import end

    end()

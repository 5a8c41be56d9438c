"""Ranks that share a model: whether they are there, and what the others do while rank 0 leads."""

from collections.abc import Iterable

from spsbench.errors import UsageError
from spsbench.machine.ranks import MissingRanksError, ranks
from spsbench.settings.models import CHECKPOINT, ModelSpec


def check_ranks(models: Iterable[ModelSpec]) -> None:
    """Refuse a shared model where its ranks are not there.

    Raises:
        MissingRanksError: there is one process alone.
        UsageError: models that are shared by different numbers of ranks, or have no weights.
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
    if shared and ranks().size == 1:
        raise MissingRanksError(str(shared[0]), shared[0].ranks, shared[0].device)


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

"""A drafter's site where the only models are tables: a session is all that can be given."""

from collections.abc import Callable
from typing import Any

from spsbench.errors import UsageError
from spsbench.loop.planning import plan_of
from spsbench.loop.site import (
    Cache,
    HeadWeights,
    Made,
    Network,
    OwnWeights,
    Plan,
    TargetParts,
    Variant,
    Weights,
)
from spsbench.loop.types import LM, Drafter
from spsbench.plugins import make
from spsbench.spec import Spec


class TableSite:
    """`loop.site.Site` over the table of a draft model."""

    def __init__(self, lm: LM, plan: Plan) -> None:
        self.vocab_size = lm.vocab_size
        self.tokenizer: Any = None
        self.vocabularies: Any = None
        self._lm, self._plan = lm, plan

    def session(self) -> LM:
        """The table."""
        if self._plan.weights is not Weights.MODEL:
            raise UsageError("asked for a draft model: expected its plan to name it (weights)")
        return self._lm

    def own(self) -> OwnWeights:
        """Never there."""
        raise UsageError("reads weights of its own, and a table has none")

    def head(self) -> HeadWeights:
        """Never there."""
        raise UsageError("reads weights of its own, and a table has none")

    def network(self, make: Callable[[], Network]) -> Network:
        """Never there."""
        raise UsageError("reads weights of its own, and a table has none")

    def target(self) -> TargetParts:
        """Never there."""
        raise UsageError("uses parts of the target, and a table has none")

    def cache(self, most: int | None = None) -> Cache:
        """Never there: without weights of its own there are no layers to keep."""
        raise UsageError("keeps a cache for layers of its own, and a table has none")

    def variant(self, variant: Variant) -> LM:
        """Never there."""
        raise UsageError("leaves out layers of the target, and a table has none")

    def memory(self, make: Callable[[], Made]) -> Made:
        """Nothing is remembered: each walk begins as the first."""
        return make()


def open_over(lm: LM, drafter: Spec) -> Drafter:
    """A drafter of the registry over the table of a draft model.

    Raises:
        SpsError: it cannot be made there.
    """
    made: Drafter = make("drafters", drafter, TableSite(lm, plan_of(drafter)))
    return made

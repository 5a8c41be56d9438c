"""What a forecast stands on: costs, cells, and the texts that drafts were traced along."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spsbench.planning.arms import candidate_of
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.outlook import Outlook, Traced, outlook
from spsbench.settings.cell import Cell
from spsbench.store.traces import Traces


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """Costs and cells; without texts nothing is foretold of them.

    Attributes:
        cells: what may be foretold.
        traced: what drafts -> what it is, and its texts.
    """

    costs: Costs
    cells: Sequence[Cell]
    traced: Traced = field(default_factory=dict)

    def outlook(self, told: Callable[[int, int], None] = lambda done, total: None) -> Outlook:
        """What is foretold of every candidate; `told` how many of them are done.

        Raises:
            DataError: the costs of one of them were not measured.
        """
        return outlook(map(candidate_of, self.cells), self.traced, self.costs, told)


def traced_of(traces: Traces) -> Traced:
    """What drafts -> what it is, and its texts."""
    return {name: (draft, traces.of(name)) for name, draft in traces.drafts.items()}

"""The costs of a plan: given, from an earlier start, or measured."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spsbench.benchmark.jobs import prompt_ids
from spsbench.benchmark.models import Models
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.models.cache import Loaded
from spsbench.planning.folder import COSTS
from spsbench.planning.inputs import check_priced
from spsbench.planning.measure import Pace, differing, measure, setting_of
from spsbench.settings.cell import Cell
from spsbench.settings.commands import Planning
from spsbench.settings.labels import drafting
from spsbench.settings.task import Sample
from spsbench.store.atomic import replace_file
from spsbench.store.traces import Traces

log = logging.getLogger(__name__)

LONGEST = 4096  # most tokens of prompts for the measurement
APART = 64  # least distance of two contexts, in tokens


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The source of a plan's costs, and what a measurement needs.

    Args:
        folder: of the plan.
        plain: the ArS cell of the target.
        cells: the candidates.
        watch: called after each turn of a measurement.
    """

    folder: Path
    planning: Planning
    plain: Cell
    cells: Sequence[Cell]
    models: Models
    watch: Callable[[Pace], None]

    def costs(self, samples: Sequence[Sample], traces: Traces) -> Costs:
        """Return the costs of every traced draft, under the hypothetical factors.

        Args:
            samples: the measurement uses their prompts as text.

        Raises:
            SpsError: unreadable or incomplete costs, or no way to measure them.
        """
        given = self.planning.costs
        if given is not None:
            costs = read_costs(given)
            check_priced([*traces.drafts], costs, str(given))
        else:
            costs = self._own(samples, traces)
        return costs.scaled(**self.planning.factors)

    def _own(self, samples: Sequence[Sample], traces: Traces) -> Costs:
        pairs = self._pairs(traces)
        path = self.folder / COSTS
        if path.exists():
            costs = read_costs(path)
            changed = differing(setting_of([(self.plain, pairs[0][1]), *pairs]), costs.setting)
            lacking = {
                drafting(cell): None for cell, _ in pairs if drafting(cell) not in costs.arms
            }
            if not changed and not lacking:
                return costs
            why = ", ".join([*changed, *lacking])
            log.info(f"note: costs are measured again, of another setting ({why})")
        costs = self._measured(pairs, samples, traces)
        if found := costs.contradictions():
            log.info(f"note: the costs contradict each other, and are measured again: {found[0]}")
            again = self._measured(pairs, samples, traces)
            if len(again.contradictions()) <= len(found):
                costs = again
        replace_file(path, dumps(costs).encode("ascii"))
        return read_costs(path)

    def _measured(
        self, pairs: Sequence[tuple[Cell, Loaded]], samples: Sequence[Sample], traces: Traces
    ) -> Costs:
        return measure(
            pairs,
            self._text(samples, pairs[0][1]),
            contexts=contexts_of(traces),
            seconds=self.planning.cost_seconds,
            watch=self.watch,
        )

    def _pairs(self, traces: Traces) -> list[tuple[Cell, Loaded]]:
        """Return a cell for each draft and rule, with its models."""
        known = [cell for cell in self.cells if drafting(cell) in traces.drafts]
        firsts = {(drafting(c), str(c.method.verifier)): c for c in reversed(known)}
        return [(cell, self.models(cell)) for cell in reversed(firsts.values())]

    def _text(self, samples: Sequence[Sample], models: Loaded) -> list[int]:
        """Return the tokens of all prompts, concatenated."""
        found: list[int] = []
        for sample in samples:
            found += prompt_ids(models.tokenizer, self.plain.work, sample.prompt)
            if len(found) >= LONGEST:
                break
        return found[:LONGEST]


def contexts_of(traces: Traces) -> list[int]:
    """Return the shortest prompt and the longest text, in tokens; one value where both are near."""
    low = min(text.prompt_tokens for text in traces.texts.values())
    high = max(text.prompt_tokens + len(text.q) for text in traces.texts.values())
    return [low, high] if high - low > APART else [(low + high) // 2]

"""What a plan is asked beside options of cells: how many texts, and from which files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.settings.option import MACHINE, METHOD, RUN, SIZE, WORK, Option, between, one_of
from spsbench.settings.setting import Setting, settings_of
from spsbench.settings.sweep import MOST

TASK = "xsum:data=mini"  # where nobody names prompts: what the bundled pair was trained for
KS = "1..8,10,12,16"
FACTOR = between(1e-6, 1e6, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Of `sps plan`."""

    prompts: Annotated[
        Path | None, Option("Prompts of your own: JSONL, as of the task jsonl.", WORK)
    ] = None
    k: Annotated[
        str, Option("4, 1..8, 2,4,6: the K that are compared.", METHOD, flags=("k",), ranges=True)
    ] = KS
    limit: Annotated[int, Option("Prompts that are traced.", SIZE, between(1, MOST))] = 64
    held_back: Annotated[
        int, Option("Prompts on which the best are measured.", SIZE, between(1, MOST))
    ] = 24
    confirm: Annotated[
        int, Option("How many of the best are measured beside ArS.", SIZE, between(0, 100))
    ] = 2
    cost_seconds: Annotated[
        float, Option("What measuring the costs may take.", SIZE, between(0.1, 1e5, "0.1..100000"))
    ] = 20.0
    trace: Annotated[
        tuple[str, ...],
        Option("A trace, or a run that has some: nothing is generated.", RUN, metavar="PATH"),
    ] = ()
    costs: Annotated[
        Path | None, Option("A table of costs: nothing is measured.", RUN, metavar="FILE")
    ] = None
    draft_cost: Annotated[
        float | None, Option("What if drafts took so many times as long?", MACHINE, FACTOR)
    ] = None
    target_cost: Annotated[float | None, Option("What if the target did?", MACHINE, FACTOR)] = None
    chat: Annotated[
        str,
        Option(
            "Ask in the target's chat template: auto (where it has one), on or off.",
            WORK,
            one_of("auto", "on", "off"),
        ),
    ] = "auto"
    system: Annotated[str | None, Option("System message of a chat.", WORK)] = None
    every: Annotated[bool, Option("A row for every candidate, not the best K alone.", RUN)] = False

    @property
    def factors(self) -> dict[str, float]:
        """Of costs, by part, where they are asked for as if they were others."""
        own = {"draft": self.draft_cost, "target": self.target_cost}
        return {part: factor for part, factor in own.items() if factor is not None}

    @property
    def unmeasured(self) -> str:
        """Why no real rounds are run; empty: they are."""
        if self.factors:
            return "the costs are as if they were others (--draft-cost, --target-cost)"
        if self.costs is not None:
            return "the costs are given (--costs), and may be of another machine"
        return "" if self.confirm else "--confirm is 0"


LISTS = ("draft", "drafter", "verifier", "schedule")
"""Options of cells that may be given more than once: each value is compared."""

OF_PLANNING: Mapping[str, Setting] = {each.name: each for each in settings_of(Planning)}
"""Name -> setting."""

"""Grids: options of cells, each with the values it takes; one configuration is a grid of one."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spsbench.settings.cell import ELSEWHERE, SAMPLING_FIELDS, Cell
from spsbench.settings.cell_from_options import DRAFTING, OF_CELL, fill, own_copy
from spsbench.settings.facts import NOTHING, ModelFacts
from spsbench.settings.options import convert_options
from spsbench.spec import Spec

SLOWEST = ("setting", *SAMPLING_FIELDS)  # axes; seeds, batches and drafting turn fastest
LAST = ("batch", "seed")


@dataclass(frozen=True)
class Grid:
    """Every combination of some values.

    Args:
        axes: option -> its values; what is left out has its default.
        baseline: with the cell of K = 0 of each combination.
        speculative: with the others.
    """

    axes: Mapping[str, tuple[Any, ...]]
    baseline: bool = False
    speculative: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Grid":
        """Make the grid of one cell from its options; None counts as not given.

        Raises:
            UsageError: an unknown name, or a value of another type or out of range.
        """
        return cls({name: (v,) for name, v in convert_options(OF_CELL, options).items()})

    @property
    def given(self) -> dict[str, Any]:
        """Return the options of a grid of one."""
        return {name: values[0] for name, values in self.axes.items()}

    def one(self, facts: ModelFacts = NOTHING, *, chat: bool = False) -> Cell:
        """Return the cell of a grid of one.

        Raises:
            UsageError: two values that contradict each other.
        """
        return fill(self.given, facts, chat=chat)

    def cells(self, facts: ModelFacts = NOTHING) -> Iterator[Cell]:
        """Yield the cell of each combination. Raises like `one`."""
        yield from (fill(point, facts) for point in self.points())

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield the options of each cell: sampling first, then models, work, and ways to draft."""
        drafting = {n: self.axes[n] for n in ("k", *DRAFTING) if n in self.axes}
        others = [name for name in self.axes if name not in drafting]
        order = sorted(others, key=_place)
        for point in combinations({name: self.axes[name] for name in order}):
            for arm in self._arms(drafting):
                yield self._drafting_here(point, arm)

    def under(self, changes: Mapping[str, tuple[Any, ...]]) -> "Grid":
        """Return the grid with other values; a `k` replaces a schedule, and a schedule a `k`."""
        other = {"k": "schedule", "schedule": "k"}
        dropped = {other[name] for name in changes if name in other} - changes.keys()
        axes = {name: values for name, values in self.axes.items() if name not in dropped}
        return replace(self, axes={**axes, **changes})

    def without(self, name: str) -> "Grid":
        """Return the grid without an option, and without those of its model."""
        left = (n for n in self.axes if n != name and not n.startswith(f"{name}_"))
        return replace(self, axes={n: self.axes[n] for n in left})

    def _arms(self, drafting: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
        if self.baseline:
            yield {"k": 0}
        if not self.speculative:
            return
        for arm in combinations(drafting):
            if len(drafting.get("drafter", ())) > 1 and own_copy(arm["drafter"]):
                arm.pop("draft", None)  # it is for the other drafters
            yield arm

    def _drafting_here(self, point: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a cell, without those of drafting where the engine has its own.

        They are for the other decoders of the grid; without any they stay, and are refused.
        """
        decoders: tuple[Spec, ...] = self.axes.get("decoder", ())
        some_are_ours = any(decoder.name not in ELSEWHERE for decoder in decoders)
        if some_are_ours and point["decoder"].name in ELSEWHERE:
            arm = {name: value for name, value in arm.items() if name == "k"}
        return point | arm


def _place(name: str) -> int:
    if name in LAST:
        return len(SLOWEST) + 1 + LAST.index(name)
    return SLOWEST.index(name) if name in SLOWEST else len(SLOWEST)


def combinations(lists: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value from each list, the last list turning fastest."""
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))

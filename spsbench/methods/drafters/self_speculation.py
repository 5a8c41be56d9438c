"""Self-speculation: the target drafts with some layers skipped (Draft & Verify, arXiv 2309.08168).

It needs no other model and no more memory for weights; the draft has a cache of its own. Which
layers can be skipped depends on the model: `methods.layer_search` finds them.
"""

from typing import Self

from spsbench.loop.drafter_context import DrafterContext, Plan, Variant
from spsbench.loop.types import Drawn
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.settings.models import QUANTISED

Numbers = str | int
"""Layers as a spec has them: `3`, or `2+4+8-11`."""

EVERY_OTHER = "half"


class SelfDrafter(ModelDrafter):
    """A drafter that samples from the target with some layers skipped; `open` has the arguments."""

    uses_target = True

    @classmethod
    def plan(cls, skip: Numbers = EVERY_OTHER, attention: Numbers = "", mlp: Numbers = "") -> Plan:
        """Return the plan: sampled chains, without a draft model."""
        variant_of(4, skip, attention, mlp)
        return Plan(Drawn.IID, target=True)

    @classmethod
    def open(
        cls,
        context: DrafterContext,
        skip: Numbers = EVERY_OTHER,
        attention: Numbers = "",
        mlp: Numbers = "",
    ) -> Self:
        """Open the drafter over a view of the target.

        Args:
            context: of a loaded target.
            skip: skipped layers, from 0: `3`, `2+4+8-11`, also without the key as `self:8-11`;
                `half` is every other one but the first and the last two, a guess; `none` skips no
                whole layer.
            attention, mlp: layers of which that half alone is skipped.
        """
        count = int(context.target().config.num_hidden_layers)
        return cls(context.variant(variant_of(count, skip, attention, mlp)))


def variant_of(count: int, skip: Numbers, attention: Numbers, mlp: Numbers) -> Variant:
    """Return the skipped parts of a model of `count` layers.

    Raises:
        ValueError: no numbers of layers, or nothing left out.
    """
    if skip == EVERY_OTHER:
        layers = frozenset(range(2, count - 2, 2)) or frozenset({count - 1})
    else:
        layers = numbers("skip", "" if skip == "none" else skip)
    variant = Variant(layers, numbers("attention", attention), numbers("mlp", mlp))
    if variant == Variant():
        raise ValueError("nothing is left out: expected layers, as in self:8-11")
    return variant


def numbers(name: str, given: Numbers) -> frozenset[int]:
    """Parse the layers in `3`, `2+4` or `8-11`.

    Raises:
        ValueError: something else.
    """
    found: set[int] = set()
    for part in str(given).split("+") if given != "" else ():
        first, dash, last = part.partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or int(last or first) < int(first)
        ):
            raise ValueError(
                f"{name} is {given!r}: expected layers as 3, 2+4 or 8-11, or the target's weights "
                f"quantised as {', '.join(f'self:{each}' for each in QUANTISED)} alone"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)

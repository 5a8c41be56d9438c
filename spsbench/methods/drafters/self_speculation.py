"""Self-speculation: the target drafts with fewer layers, or over a part of its own cache.

It needs no other model and no more memory for weights; the draft has a cache of its own. Which
layers can be skipped depends on the model (Draft & Verify, arXiv 2309.08168). A part of the cache
pays in long contexts (MagicDec, 2408.11049).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from spsbench.loop.drafter_context import CachePart, DrafterContext, Drawn, Variant, Weights
from spsbench.loop.types import Context, Draft, Drafter, GoOn, Noise
from spsbench.methods.drafters.frontier import Arguments
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.settings.models import QUANTISED

MAX_CACHE_TOKENS = 1 << 24  # of a part of the cache
SINKS = 4  # first tokens that attention rests on, as in StreamingLLM


@dataclass(frozen=True)
class Self(Arguments):
    """A drafter that samples from the target with layers skipped, or over a part of its cache.

    Args:
        skip: skipped layers, from 0: `3`, `2+4+8-11`, also without the key as `self:8-11`; `half`
            (the default) is every other one but the first and the last two, a guess.
        window: newest tokens whose rows are read; all layers are kept.
        sinks: first tokens whose rows are read as well; 4 where they are not given.
    """

    weights, uses_target, drawn, tree = Weights.NONE, True, Drawn.IID, False
    ranges: ClassVar = {"window": (1, MAX_CACHE_TOKENS), "sinks": (0, MAX_CACHE_TOKENS)}

    skip: str | int = ""
    window: int | None = None
    sinks: int | None = None

    def __post_init__(self) -> None:
        variant_of(4, self.skip)
        if self.window is None and self.sinks is not None:
            raise ValueError("sinks without window: expected both, as self:window=256,sinks=4")
        if self.window is not None and self.skip != "":
            raise ValueError(
                "window with layers left out: expected one of the two, as self:window=256"
            )

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Drafter:
        drafter = cls(**arguments)
        if drafter.window is not None:
            sinks = SINKS if drafter.sinks is None else drafter.sinks
            return PartialDrafter(context.partial(CachePart(drafter.window, sinks)))
        count = int(context.target().config.num_hidden_layers)
        return ModelDrafter(context.variant(variant_of(count, drafter.skip)))


class PartialDrafter(ModelDrafter):
    """A drafter that samples from the target over a part of the target's own cache."""

    along = Drafter.along  # laws depend on the rounds: within one, drafted rows are the draft's

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        self.lm.commit(len(context.tokens) - 1)
        return super().draft(context, k, noise, go_on)


def variant_of(count: int, skip: str | int) -> Variant:
    """Return the skipped layers of a model of `count`."""
    if skip in ("", "half"):
        return Variant(frozenset(range(2, count - 2, 2)) or frozenset({count - 1}))
    return Variant(numbers(skip))


def numbers(value: str | int) -> frozenset[int]:
    """Parse the layers in `3`, `2+4` or `8-11`."""
    layers: set[int] = set()
    for one in str(value).split("+"):
        first, dash, last = one.partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or max(len(first), len(last)) > 4  # digits
            or int(last or first) < int(first)
        ):
            raise ValueError(
                f"skip is {value!r}: expected layers as 3, 2+4 or 8-11, or the target's weights "
                f"quantised as {', '.join(f'self:{kind}' for kind in QUANTISED)} alone"
            )
        layers.update(range(int(first), int(last or first) + 1))
    return frozenset(layers)

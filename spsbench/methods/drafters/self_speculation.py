"""Self-speculation: the target drafts with fewer layers, or over a part of its own cache.

It needs no other model and no more memory for weights; the draft has a cache of its own. Which
layers can be skipped depends on the model (Draft & Verify, arXiv 2309.08168). A part of the cache
pays in long contexts (MagicDec, 2408.11049).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.drafter_context import CachePart, DrafterContext, Plan, Variant, Weights
from spsbench.loop.guards import plan_of
from spsbench.loop.sampling import sample, send
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Noise,
    Purpose,
    Scores,
    continues,
)
from spsbench.methods.drafters.hybrid import Silence
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.plugins import make
from spsbench.settings.cell_from_options import part
from spsbench.settings.models import QUANTISED

Numbers = str | int
"""Layers as a spec has them: `3`, or `2+4+8-11`."""

MAX_CACHE_TOKENS = 1 << 24  # of a part of the cache
EVERY_OTHER = "half"


SINKS = 4  # first tokens that attention rests on, as in StreamingLLM


class SelfDrafter(ModelDrafter):
    """A drafter that samples from the target with some layers skipped; `open` has the arguments."""

    uses_target = True
    ranges: ClassVar = {"window": (1, MAX_CACHE_TOKENS), "sinks": (0, MAX_CACHE_TOKENS)}

    @classmethod
    def plan(
        cls,
        skip: Numbers = "",
        window: int | None = None,
        sinks: int | None = None,
        first: str | None = None,
    ) -> Plan:
        if part_of(skip, window, sinks) is None:
            variant_of(4, skip)
            if first is not None:
                raise ValueError("first without window: expected both, as window=256,first=suffix")
        if first is not None:
            inner = plan_of(part(first))
            if inner.drawn is not Drawn.POINT or inner.tree or inner.weights is not Weights.NONE:
                raise ValueError(
                    f"{first} drafts no chains by rule: expected ngram, suffix or copy"
                )
        return Plan(Drawn.IID, target=True)

    @classmethod
    def open(  # type: ignore[override]
        cls,
        context: DrafterContext,
        skip: Numbers = "",
        window: int | None = None,
        sinks: int | None = None,
        first: str | None = None,
    ) -> ModelDrafter:
        """Open the drafter over a view of the target, or over a part of the target's cache.

        Args:
            context: of a loaded target.
            skip: skipped layers, from 0: `3`, `2+4+8-11`, also without the key as `self:8-11`;
                `half` (the default) is every other one but the first and the last two, a guess.
            window: newest tokens whose rows are read; all layers are kept.
            sinks: first tokens whose rows are read as well; 4 where they are not given.
            first: a drafter by rule that drafts for this one, as in TriForce.
        """
        read = part_of(skip, window, sinks)
        if read is not None and first is not None:
            return TwoLevelDrafter(context.partial(read), make("drafters", part(first), context))
        if read is not None:
            return PartialDrafter(context.partial(read))
        count = int(context.target().config.num_hidden_layers)
        return cls(context.variant(variant_of(count, skip)))


class PartialDrafter(ModelDrafter):
    """A drafter that samples from the target over a part of the target's own cache."""

    uses_target = True
    along = Drafter.along  # laws depend on the rounds: within one, drafted rows are the draft's

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        self.lm.commit(len(context.tokens) - 1)
        return super().draft(context, k, noise, go_on)


class TwoLevelDrafter(PartialDrafter):
    """A `PartialDrafter` for which another drafts (TriForce, Sun et al. 2024, arXiv 2404.11912).

    Each token is drawn from the law of the target over a part of its cache, as without `first`, and
    a pass goes on while the token is the one that `first` guessed. So neither tokens nor laws of a
    draft depend on the guesses, and verifiers stay exact; passes do.
    """

    def __init__(self, lm: LM, first: Drafter) -> None:
        super().__init__(lm)
        self._first = first

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        super().begin(prompt, prefill)
        self._first.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        lm, u = self.lm, noise.uniform(Purpose.DRAFT, k)
        laws: list[Tensor] = []
        text, more = list(context.tokens), True
        begin = len(text)
        lm.commit(begin - 1)
        guess = self._first.draft(context, max(0, k - 1), Silence(), go_on).tokens.tolist()
        while more and len(laws) < k:
            drafted = text[begin:]
            fits = drafted == guess[: len(drafted)] and lm.length == len(text) - 1
            ahead = guess[len(drafted) : k - 1] if fits else []
            feed = torch.tensor(text[lm.length :] + ahead)
            logits = lm.append(feed, keep=len(ahead) + 1).logits
            if (constraint := context.constraint) is not None:
                texts = (text + ahead[:n] for n in range(len(ahead) + 1))
                allowed = constraint.allowed(map(constraint.output, texts))
                logits = logits.masked_fill(~send(allowed, logits.device), -torch.inf)
            for row, law in zip(logits, context.warp(logits), strict=True):
                more = bool(continues(go_on, context.warp, row, law))
                if not more:
                    break
                text.append(int(sample(law, u[len(laws)])))
                laws.append(law)
                if text[begin:] != guess[: len(laws)]:
                    break
            lm.commit(begin - 1, list(range(len(text) - begin)))
        if not laws:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.tensor(text[begin:]), torch.stack(laws))


def part_of(skip: Numbers, window: int | None, sinks: int | None) -> CachePart | None:
    """Return the part of the cache that a draft reads; None: layers are left out instead."""
    if window is None and sinks is None:
        return None
    if window is None:
        raise ValueError("sinks without window: expected both, as self:window=256,sinks=4")
    if skip != "":
        raise ValueError("window with layers left out: expected one of the two, as self:window=256")
    return CachePart(window, SINKS if sinks is None else sinks)


def variant_of(count: int, skip: Numbers) -> Variant:
    """Return the skipped layers of a model of `count`."""
    if skip in ("", EVERY_OTHER):
        return Variant(frozenset(range(2, count - 2, 2)) or frozenset({count - 1}))
    return Variant(numbers(skip))


def numbers(value: Numbers) -> frozenset[int]:
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

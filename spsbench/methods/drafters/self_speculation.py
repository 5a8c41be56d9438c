"""Self-speculation: the target drafts with fewer layers, or over a part of its own cache.

It needs no other model and no more memory for weights; the draft has a cache of its own. Which
layers can be skipped depends on the model (Draft & Verify, arXiv 2309.08168). A part of the cache
pays in long contexts (MagicDec, 2408.11049).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spsbench.loop.drafter_context import CachePart, DrafterContext, Drawn, Plan, Variant, Weights
from spsbench.loop.guards import plan_of
from spsbench.loop.sampling import sample, send_mask
from spsbench.loop.types import LM, Context, Draft, Drafter, GoOn, Noise, Purpose, Scores, continues
from spsbench.methods.drafters.frontier import Arguments
from spsbench.methods.drafters.hybrid import Silence
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.plugins import make
from spsbench.settings.cell_from_options import parse_inner
from spsbench.settings.models import QUANTISED

MAX_CACHE_TOKENS = 1 << 24  # tokens of a part of the cache
SINKS = 4  # first tokens that attention rests on, as in StreamingLLM


@dataclass(frozen=True)
class Self(Arguments):
    """A drafter that samples from the target with layers skipped, or over a part of its cache.

    Args:
        skip: skipped layers, from 0: `3`, `2+4+8-11`, also without the key as `self:8-11`; `half`
            (the default) is every other one but the first and the last two, a guess.
        window: newest tokens whose rows are read; all layers are kept.
        sinks: first tokens whose rows are read as well; 4 where they are not given.
        first: a drafter by rule that drafts for that of a window, as in TriForce.
    """

    weights, uses_target, drawn, tree = Weights.NONE, True, Drawn.IID, False
    ranges: ClassVar = {"window": (1, MAX_CACHE_TOKENS), "sinks": (0, MAX_CACHE_TOKENS)}

    skip: str | int = ""
    window: int | None = None
    sinks: int | None = None
    first: str | None = None

    def __post_init__(self) -> None:
        variant_of(4, self.skip)
        if self.window is None and (self.sinks, self.first) != (None, None):
            raise ValueError("sinks or first without window: expected one, as self:window=256")
        plan = None if self.first is None else plan_of(parse_inner(self.first))
        if plan not in (None, Plan(Drawn.POINT)):
            raise ValueError(
                f"{self.first} drafts no deterministic chains: expected one such as ngram or suffix"
            )
        if self.window is not None and self.skip != "":
            raise ValueError(
                "window with layers left out: expected one of the two, as self:window=256"
            )

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Drafter:
        """Open a drafter over a part of the cache if there is a window, else over fewer layers.

        With `first` that drafter drafts for the one over the part. ValueError: they conflict.
        """
        drafter = cls(**arguments)
        if drafter.window is not None:
            sinks = SINKS if drafter.sinks is None else drafter.sinks
            lm = context.partial(CachePart(drafter.window, sinks))
            if drafter.first is None:
                return PartialDrafter(lm)
            return TwoLevelDrafter(lm, make("drafters", parse_inner(drafter.first), context))
        count = int(context.target().config.num_hidden_layers)
        return ModelDrafter(context.variant(variant_of(count, drafter.skip)))


class PartialDrafter(ModelDrafter):
    """A drafter that samples from the target over a part of the target's own cache."""

    along = Drafter.along  # probs depend on the rounds: within one, drafted rows are the draft's

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        self.lm.commit(len(context.tokens) - 1)
        return super().draft(context, k, noise, go_on)


class TwoLevelDrafter(PartialDrafter):
    """A `PartialDrafter` for which another drafts (TriForce, Sun et al. 2024, arXiv 2404.11912).

    Each token is drawn from the distribution of the target over a part of its cache, as without
    `first`, and a pass goes on while the token is the one that `first` guessed. So neither tokens
    nor probs of a draft depend on the guesses, and verifiers stay exact; passes do.
    """

    def __init__(self, lm: LM, first: Drafter) -> None:
        super().__init__(lm)
        self._first = first

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        super().begin(prompt, prefill)
        self._first.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draw up to `k` tokens with probs [N, V], under constraint and processors.

        Slot i uses DRAFT's uniform i. `first` guesses once: a pass makes what it guessed right and
        one more, after a wrong guess one alone. Ends where `go_on` refuses the next slot.
        """
        lm, u = self.lm, noise.uniform(Purpose.DRAFT, k)
        p: list[Tensor] = []
        text, more = list(context.tokens), True
        begin = len(text)
        lm.commit(begin - 1)
        guess = self._first.draft(context, max(0, k - 1), Silence(), go_on).tokens.tolist()
        while more and len(p) < k:
            drafted = text[begin:]
            ahead = guess[len(drafted) : k - 1] if drafted == guess[: len(drafted)] else []
            feed = torch.tensor(text[begin - 1 :] + ahead)
            logits = lm.append(feed, keep=len(ahead) + 1).logits
            lm.commit(begin - 1)
            if (constraint := context.constraint) is not None:
                texts = (text + ahead[:n] for n in range(len(ahead) + 1))
                allowed = constraint.allowed(map(constraint.output, texts))
                logits = logits.masked_fill(~send_mask(allowed, logits.device), -torch.inf)
            if context.processors is not None:
                paths = [tuple(drafted + ahead[:n]) for n in range(len(ahead) + 1)]
                logits = context.processors.rows(logits, context.tokens, paths)
            for row, probs in zip(logits, context.warp(logits), strict=True):
                more = bool(continues(go_on, context.warp, row, probs))
                if not more:
                    break
                text.append(int(sample(probs, u[len(p)])))
                p.append(probs)
                if text[begin:] != guess[: len(p)]:
                    break
        return Draft(torch.tensor(text[begin:]).long(), torch.stack(p) if p else None)


def variant_of(count: int, skip: str | int) -> Variant:
    """Return the layers to skip, from 0, of `count`, by `skip`: such as 3, 2+4 or 8-11 (inclusive).

    Empty or `half` is 2, 4, ... before the last two, of fewer than 5 layers the last. ValueError
    for anything else; that the model has the layers is not checked.
    """
    if skip in ("", "half"):
        return Variant(frozenset(range(2, count - 2, 2)) or frozenset({count - 1}))
    layers: set[int] = set()
    for one in str(skip).split("+"):
        first, dash, last = one.partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or max(len(first), len(last)) > 4  # digits
            or int(last or first) < int(first)
        ):
            raise ValueError(
                f"skip is {skip!r}: expected layers as 3, 2+4 or 8-11, or the target's weights "
                f"quantised as {', '.join(f'self:{kind}' for kind in QUANTISED)} alone"
            )
        layers.update(range(int(first), int(last or first) + 1))
    return Variant(frozenset(layers))

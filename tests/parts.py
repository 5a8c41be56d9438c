"""Small parts of a decode that only tests need: drafters by rule, schedules, stops."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Round, Scores


class ArgmaxDrafter(Drafter):
    """The draft model's likeliest tokens; no law, so only one-sample match may follow."""

    drawn: ClassVar[Drawn] = Drawn.POINT

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.lm.commit(0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        tokens: list[Tensor] = []
        self.lm.commit(min(self.lm.length, len(context.tokens) - 1))
        feed = torch.tensor(context.tokens[self.lm.length :])
        for _ in range(k):
            feed = self.lm.append(feed, keep=1).logits.argmax(-1)
            tokens.append(feed)
        return Draft(torch.cat(tokens) if tokens else torch.empty(0, dtype=torch.int64), None)


class FixedDrafter(Drafter):
    """Always the same draft, cut to `k` tokens where it is a chain. `drawn` is what it says."""

    drawn: ClassVar[Drawn] = Drawn.POINT

    def __init__(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self.tokens, self.parents = list(tokens), parents
        self.tree = parents is not None
        self.calls = 0

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.calls = 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        self.calls += 1
        if self.parents is None:
            return Draft(torch.tensor(self.tokens[:k], dtype=torch.int64), None)
        parents = torch.tensor(self.parents)
        depth = [0] * len(self.tokens)
        for node, parent in enumerate(self.parents):
            depth[node] = depth[parent] + 1 if parent >= 0 else 0
        fits = torch.tensor([d < k for d in depth])
        # Nodes come parents first, so that cutting at a depth keeps the numbers of those above.
        kept = fits.nonzero()[:, 0]
        number = {-1: -1, **{old: new for new, old in enumerate(kept.tolist())}}
        above = torch.tensor([number[int(parents[i])] for i in kept], dtype=torch.int64)
        return Draft(torch.tensor(self.tokens)[kept], None, above)


@dataclass
class ByHistory:
    """K from the past alone: one more after a full acceptance, else one."""

    most: int = 2

    def k(self, history: Sequence[Round]) -> int:
        if not history:
            return self.most
        last = history[-1]
        return min(last.drafted + 1, self.most) if last.accepted == last.drafted else 1

    def go_on(self, p: Tensor) -> Tensor:
        return torch.ones((), dtype=torch.bool)


@dataclass
class ByLaw:
    """Drafts a slot only where the law of its token, not the token, is peaked."""

    lookahead: int = 2
    least: float = 0.45

    def k(self, history: Sequence[Round]) -> int:
        return self.lookahead

    def go_on(self, p: Tensor) -> Tensor:
        return p.max() > self.least


def ends_with(*words: tuple[int, ...]):
    """A stop that is complete when the output ends with one of `words`."""

    def stop(output: Sequence[int]) -> bool:
        return any(tuple(output[-len(word) :]) == word for word in words)

    return stop

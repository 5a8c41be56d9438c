"""A drafter: the newest token, several times."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise


@dataclass
class Repeat(Drafter):
    """Drafts the newest token again and again."""

    drawn: ClassVar[Drawn] = Drawn.POINT  # deterministic: only rules that never ask for p accept it
    times: int = 3

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        again = [context.tokens[-1]] * min(k, self.times)
        return Draft(torch.tensor(again, dtype=torch.int64), probs=None)

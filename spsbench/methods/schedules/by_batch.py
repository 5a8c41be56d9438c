"""A schedule over a batch: a budget of verified tokens, shared by what they are worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.trees import levels_of
from spsbench.loop.types import Draft, Round, Schedule
from spsbench.methods.schedules.by_history import RunningAcceptance, measured
from spsbench.metrics.costs import BatchCosts
from spsbench.plugins import check_most, check_positive, check_ranges


@dataclass
class Budget(Schedule):
    """A schedule that verifies at most `rows` drafted tokens of all texts of a batch in a pass.

    Each text drafts `most` tokens. Those of all texts are ranked by survival, the product of the
    greatest probabilities of the laws up to a slot, and the first `rows` are verified (vLLM's
    adaptive verification ranks by the same product). Where a draft has no law a slot, survival is
    the running acceptance of the text to the power of the depth. With `costs`, measured in batches,
    the ranking ends at the first token that costs more than it brings.

    Survival falls along a draft and depends on no token drawn there or later; so tokens may be
    seen as chosen one after another, each before it is drawn, and the law of all texts is exact. An
    end that is chosen by looking further down the ranking, as by the best rate of all, would
    depend on tokens through the laws after them. Host reads: one a pass.
    """

    ranges: ClassVar = {"rows": (0, 1 << 20)}

    rows: int = 16
    costs: str = ""
    arm: str = ""
    context: int = 256
    decay: float = 0.9
    alpha: float = 0.7
    most: int = 8

    def __post_init__(self) -> None:
        check_most(self.most)
        check_positive("context", self.context)
        check_ranges(self, rows=self.rows)
        self._acceptance = RunningAcceptance(self.decay, self.alpha)
        self._recent = self.alpha
        self._peaks: list[Tensor] = []
        self._table: BatchCosts | None = None
        if self.costs:
            table, self._name = measured(self.costs, self.arm, 2)
            self._table = table.batches
        self._seconds: dict[int, list[float]] = {}  # texts -> of a round with each number of rows

    def k(self, history: Sequence[Round]) -> int:
        """Start a new round and return the bound."""
        self._recent, self._peaks = self._acceptance(history), []
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        """Return true, and keep the greatest probability: at temperature 0 of the law at 1."""
        self._peaks.append(p.amax())
        return torch.ones((), dtype=torch.bool)

    def worth(self, draft: Draft) -> Tensor:
        """Return [N] the survival of each token; a NaN law passes, and the loop reports it."""
        n = len(draft.tokens)
        if draft.probs is None or draft.parents is not None:
            depths = range(1, n + 1) if draft.parents is None else levels_of(draft.parents.tolist())
            falling = accumulate((self._recent**depth for depth in depths), min)
            return torch.tensor(list(falling), dtype=torch.float64)
        asked = torch.stack(self._peaks) if n and len(self._peaks) == n else draft.probs.amax(-1)
        return asked.double().nan_to_num(1.0).clamp(max=1.0).cumprod(0)

    def share(self, worths: Sequence[Tensor]) -> list[int]:
        """Return how many tokens of each draft are verified; of equals the shallower come first."""
        host = torch.cat(list(worths)).tolist()
        places = [(slot, text) for text, own in enumerate(worths) for slot in range(len(own))]
        ranked = sorted(zip((-worth for worth in host), places, strict=True))
        counts, tokens = [0] * len(worths), float(len(worths))
        for n, (loss, (_, text)) in enumerate(ranked[: self.rows]):
            if not self._pays(len(worths), n, tokens, -loss):
                break
            counts[text] += 1
            tokens -= loss
        return counts

    def _pays(self, texts: int, n: int, tokens: float, worth: float) -> bool:
        """Return whether one more than `n` rows makes more tokens a second."""
        if self._table is None:
            return True
        if texts not in self._seconds:
            each = range(self.rows + 1)
            self._seconds[texts] = [self._round(self._table, texts, rows) for rows in each]
        before, after = self._seconds[texts][n : n + 2]
        return (tokens + worth) * before > tokens * after

    def _round(self, table: BatchCosts, texts: int, rows: int) -> float:
        turns = table.round(self._name, self.most, rows / texts, texts, self.context)
        return float(np.median(turns))

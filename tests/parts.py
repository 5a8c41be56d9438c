"""Small parts of a decode that only tests need: schedules, stops."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spsbench.loop.types import Round, Schedule


@dataclass
class ByHistory(Schedule):
    """K from the past alone: one more after a full acceptance, else one."""

    most: int = 2

    def k(self, history: Sequence[Round]) -> int:
        if not history:
            return self.most
        last = history[-1]
        return min(last.drafted + 1, self.most) if last.accepted == last.drafted else 1


@dataclass
class ByLaw(Schedule):
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

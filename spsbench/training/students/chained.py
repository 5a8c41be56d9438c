"""Heads that foretell several tokens from the target's last hidden state alone."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from spsbench.training.students.student import Batch, Guess, Lesson, Student, wanted_rows


class Chained(Student):
    """Row j of pass d foretells token j + 2 + d of a text, from hidden state j and tokens after it.

    So pass d tells the row j + 1 + d of the batch.
    """

    network: nn.Module

    def reads(self, layers: int) -> Sequence[int]:
        """The last one."""
        return (layers,)

    @abstractmethod
    def states(
        self, hidden: Tensor, tokens: Tensor, depth: int
    ) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        """A state for each depth [B, T, .], and the projection that makes logits of it.

        Args:
            hidden: [B, T, D] of the target, the last.
            tokens: [B, T] of the text; what is beyond its end is 0.
            depth: how many.
        """

    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> Iterator[Guess]:
        """As `Student.guesses`."""
        texts, length = batch.ids.shape
        hidden = lesson.hidden[-1].to(next(self.network.parameters()).dtype)
        first = torch.arange(texts, device=hidden.device)[:, None] * length
        for d, (state, head) in enumerate(self.states(hidden, batch.ids, depth)):
            place = torch.arange(max(length - 1 - d, 0), device=hidden.device)
            at, kept = wanted_rows(batch, (first + place + 1 + d).flatten())
            mine = state[:, : len(place)].flatten(0, 1)[at]
            yield Guess(kept, head(mine))


def ahead(tokens: Tensor, count: int) -> Tensor:
    """[B, T] the token `count` places further on; 0 beyond the end."""
    return nn.functional.pad(tokens[:, count:], (0, count))

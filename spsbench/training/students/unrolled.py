"""Heads of EAGLE's kind, fed their own features as while they draft."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from spsbench.loop.drafter_context import TargetParts
from spsbench.methods.heads.network import HeadNetwork
from spsbench.training.losses.feature import feature
from spsbench.training.students import recomputed
from spsbench.training.students.growing import Growing, seen
from spsbench.training.students.layers import head_of
from spsbench.training.students.student import Batch, Guess, Lesson, Student, wanted_rows


class Unrolled(Student):
    """`HeadNetwork` over texts: row t of pass d tells token t + 2, after d tokens of a draft.

    Args:
        network: with weights to begin with.
        target: its embeddings and head, which stay as they are.
        depth: passes.
    """

    network: HeadNetwork
    recomputes = True
    regresses = 0.0  # weight of the feature regression

    def __init__(self, network: HeadNetwork, target: TargetParts, depth: int) -> None:
        self.network, self.target, self.depth, self.most = network, target, depth, 16
        self.ids, self._their_head = network.ids, head_of(target)

    @property
    def passes(self) -> int:
        """One a depth."""
        return self.depth

    def reads(self, layers: int) -> Sequence[int]:
        """Its features, and the last one."""
        return sorted({*self.network.layers, layers})

    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> Iterator[Guess]:
        """All passes over the same rows, each fed the features that the one before it made."""
        texts, length = batch.ids.shape
        rows, dtype = length - 1, next(self.network.parameters()).dtype
        hidden = [
            lesson.hidden[layer][:, :-1].flatten(0, 1).to(dtype) for layer in self.network.layers
        ]
        features = self.network.fuse(hidden)
        embedded = self.network.embed(batch.ids[:, 1:].flatten(), self.target.embed).to(dtype)
        device = features.device
        place = torch.arange(rows, device=device)
        cache, told = Growing(), lesson.hidden[-1]
        for d in range(depth):
            sees = seen(texts, rows, d, device)

            def pass_over(features: Tensor, cache: Growing, sees: Tensor = sees) -> Tensor:
                return self.network.step(features, embedded, place.repeat(texts), cache, sees)

            made = recomputed.step(pass_over, features, cache, self.recompute)
            # row t tells the token after row t + 1; a draft of d tokens has d rows before it
            ahead = (torch.arange(texts, device=device)[:, None] * length + place[d:] + 1).flatten()
            at, kept = wanted_rows(batch, ahead)
            mine = made.view(texts, rows, -1)[:, d:].flatten(0, 1)[at]
            extra = None
            if self.regresses:
                true = told.flatten(0, 1)[kept].to(dtype)
                extra = self.regresses * feature(mine, true)
            yield Guess(kept, self.network.scores(mine, self._their_head), extra)
            features = moved(made, texts)


def moved(made: Tensor, texts: int) -> Tensor:
    """[m, H] what came out of each row -> what the row after it is fed; zeros before the first."""
    each = made.view(texts, -1, made.shape[-1])
    return nn.functional.pad(each[:, :-1], (0, 0, 1, 0)).flatten(0, 1)

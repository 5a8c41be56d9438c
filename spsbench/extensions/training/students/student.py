"""The interface of students: batches, the teacher's output, predictions and the base class."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of the target, padded at their ends.

    Row r of a text is the position whose distribution predicts token r + 1. Rows of a batch are
    numbered in order: row r of text b is b * T + r.

    Attributes:
        ids: [B, T] tokens; 0 beyond the end.
        starts: [B] tokens of the prompt.
        lengths: [B] tokens in all.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def in_continuation(self) -> Tensor:
        """Return [B * T] bool: rows that predict a token of the continuation."""
        rows = torch.arange(self.ids.shape[1], device=self.ids.device)
        inside = (rows >= self.starts[:, None] - 1) & (rows < self.lengths[:, None] - 1)
        return inside.flatten()

    @property
    def next_tokens(self) -> Tensor:
        """Return [B * T] the token after each row; 0 after the last."""
        return torch.nn.functional.pad(self.ids[:, 1:], (0, 1)).flatten()


@dataclass(frozen=True, slots=True)
class TeacherOutput:
    """Output of the target over a batch, without gradients.

    Attributes:
        hidden: layer -> [B, T, D], numbered as in transformers; -1 is the last.
        logits: [B, T, V].
    """

    hidden: Mapping[int, Tensor] | Sequence[Tensor]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of a student for one depth.

    Attributes:
        rows: [N] rows of the batch that are predicted, all in the continuations of texts.
        logits: [N, Vd] logits of the token after each.
        extra: [N] auxiliary loss of the student's kind, added to the user's loss.
    """

    rows: Tensor
    logits: Tensor
    extra: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Progress of a training at a step.

    Attributes:
        done: share of the training that is over, below 1.
        seed: seed of this step's random draws.
    """

    done: float
    seed: int


class Student(ABC):
    """A network in training, and its interface to the loop.

    Attributes:
        network: the network whose parameters are trained.
        depth: number of predictions that are trained.
        most: largest number of predictions, the tokens that a round may draft.
        ids: [Vd] the target's token of each column; None: the same vocabulary.
        drafter: kind of drafter that reads the result.
        rate: default learning rate.
    """

    network: nn.Module
    depth: int
    most: int
    ids: Tensor | None = None
    drafter: str
    rate: ClassVar[float]

    @property
    def passes(self) -> int:
        """Return the layers, or passes over them, whose activations a gradient needs."""
        return self.depth

    def reads(self, layers: int) -> Sequence[int]:
        """Return the hidden states to read of a target of `layers` layers; 0: embeddings."""
        return range(layers + 1)

    @abstractmethod
    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        """Yield a prediction for each depth, from 0, computed one at a time."""

    def taught(self, batch: Batch, lesson: TeacherOutput, moment: Moment) -> Iterator[Prediction]:
        """Yield the predictions of the loss: those of `guesses`, unless a kind overrides it."""
        return self.guesses(batch, lesson, self.depth)

    @abstractmethod
    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Write a folder for `draft`, in the format of the kind."""

    def describe(self) -> dict[str, Any]:
        """Return sizes, for the model card and the comparison on resume."""
        return {"parameters": sum(p.numel() for p in self.network.parameters())}


def select_continuation(batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return those of [m] `rows` that predict a continuation: indices in `rows`, and values."""
    at = batch.in_continuation[rows].nonzero()[:, 0]
    return at, rows[at]

"""What is taught, as the course sees it."""

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

    Row r of a text is the place whose law tells token r + 1. Rows of a batch are numbered through:
    row r of text b is b * T + r.

    Attributes:
        ids: [B, T] tokens; 0 beyond the end.
        starts: [B] tokens of the prompt.
        lengths: [B] tokens in all.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def wanted(self) -> Tensor:
        """[B * T] bool: rows that tell a token of the text itself, not of its prompt."""
        rows = torch.arange(self.ids.shape[1], device=self.ids.device)
        inside = (rows >= self.starts[:, None] - 1) & (rows < self.lengths[:, None] - 1)
        return inside.flatten()

    @property
    def next_tokens(self) -> Tensor:
        """[B * T] the token after each row; 0 after the last."""
        return torch.nn.functional.pad(self.ids[:, 1:], (0, 1)).flatten()


@dataclass(frozen=True, slots=True)
class TeacherOutput:
    """What the target has computed over a batch, without gradients.

    Attributes:
        hidden: as transformers numbers them, each [B, T, D]; -1 is the last.
        logits: [B, T, V].
    """

    hidden: Mapping[int, Tensor] | Sequence[Tensor]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a student foretells one depth further than the guess before.

    Attributes:
        rows: [N] rows of the batch that it is about, all of them wanted.
        logits: [N, Vd] of the token after each.
        extra: [N] another loss of its own, added to the one that was asked for.
    """

    rows: Tensor
    logits: Tensor
    extra: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """When in a course something is taught.

    Attributes:
        done: share of the course that is over, below 1.
        seed: of what is drawn in this step.
    """

    done: float
    seed: int


class Student(ABC):
    """A network that learns, and how it is fed.

    Attributes:
        network: whose parameters are taught.
        depth: guesses that are taught.
        most: guesses that it can make: tokens that a round may draft by it.
        ids: [Vd] the target's token of each column; None: the same.
        drafter: what reads it.
        recomputes: whether it is deep enough to forget activations.
        recompute: whether it does.
    """

    network: nn.Module
    depth: int
    most: int
    ids: Tensor | None = None
    drafter: str
    rate: ClassVar[float]
    recomputes: ClassVar[bool] = False
    recompute: bool = False

    @property
    def passes(self) -> int:
        """Layers, or passes over them, whose activations a gradient needs."""
        return self.depth

    def reads(self, layers: int) -> Sequence[int]:
        """Hidden states that it reads of a target of `layers` layers, the embeddings being 0."""
        return range(layers + 1)

    @abstractmethod
    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        """One for each depth, 0 first; made one at a time, so that each may be let go."""

    def taught(self, batch: Batch, lesson: TeacherOutput, moment: Moment) -> Iterator[Prediction]:
        """What is learnt from: the guesses, unless a kind has its own way of learning them."""
        return self.guesses(batch, lesson, self.depth)

    @abstractmethod
    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Into a folder that `--draft` takes, in the format of its kind."""

    def describe(self) -> dict[str, Any]:
        """What it is, for the card and to be compared on resume."""
        return {"parameters": sum(p.numel() for p in self.network.parameters())}


def wanted_rows(batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of [m] rows those that are wanted: where in `rows`, and which."""
    at = batch.wanted[rows].nonzero()[:, 0]
    return at, rows[at]

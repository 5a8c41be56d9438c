"""Texts that a draft model writes itself while it learns, to be judged by its target at each place.

Source: DistillSpec (arXiv 2310.08461, section 4 and algorithm 1), whose share of such texts is the
lambda of generalised knowledge distillation (arXiv 2306.13649, algorithm 1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spsbench.training.course.batches import together
from spsbench.training.students.student import Batch, Student
from spsbench.training.text.writing import Text

Key = tuple[int, int]
Continue = Callable[[Student, Sequence[list[int]], Key, int], list[list[int]]]
"""What a student writes after some prompts: by what it is now, a key of the draw, and how much."""


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """A share of the steps, spread evenly; a text is a function of the weights, seed and step.

    Attributes:
        share: of the steps, 0..1.
        write: draws the texts.
        device: where they go.
    """

    share: float
    write: Continue
    device: torch.device

    def is_due(self, step: int) -> bool:
        """Whether step number `step` (from 0) is on texts of its own."""
        return math.floor((step + 1) * self.share) > math.floor(step * self.share)

    def batch(self, student: Student, texts: Sequence[Text], key: Key) -> Batch:
        """The prompts of some texts, each continued by the student for as long as its text was."""
        prompts = [prompt for prompt, _ in texts]
        written = self.write(student, prompts, key, max(len(text) for _, text in texts))
        made = [
            (prompt, mine[: len(text)]) for (prompt, text), mine in zip(texts, written, strict=True)
        ]
        return together(made, self.device)

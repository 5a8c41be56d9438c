"""The gradients of a step: the loss of a batch, accumulated in parts."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.extensions.training.batches import FLOAT32, Batches, OnPolicyTexts, products
from spsbench.extensions.training.losses import Loss
from spsbench.extensions.training.students.student import Batch, Moment, Student, TeacherOutput
from spsbench.extensions.training.teacher import TargetLaw, Teacher, student_law
from spsbench.loop.sampling import Warp


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one training: its loss, its rate, and when it ends.

    Attributes:
        loss: the loss to minimise.
        warp: temperature and truncation at which the drafter is used.
        warped: whether the loss compares warped distributions.
        lawless: whether the loss uses only the target's tokens, not its distributions.
        rate: the highest learning rate.
        steps: number of steps; None: as many as `minutes` allow.
        minutes: length of the training where `steps` is None.
        micro_tokens: tokens of a forward and backward pass.
        evaluations: number of evaluations of acceptance.
        patience: evaluations without a rise before the training ends; 0: no limit.
        worth: the training ends where a lower speed-up is predicted; 0: no limit.
        products: dtype of matrix products.
    """

    loss: Loss
    warp: Warp
    warped: bool
    lawless: bool = False
    rate: float
    steps: int | None
    minutes: float
    micro_tokens: int
    evaluations: int
    patience: int
    worth: float
    products: str = FLOAT32


DEPTH_DECAY = 0.8  # weight of a depth relative to the depth before (EAGLE-3's code)
MAX_TEXTS_NAMED = 8  # texts named in a message
NOTHING = TeacherOutput((), torch.empty(0))  # in place of the output of a target that is not run


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of a student on the texts of a step.

    Attributes:
        on_policy: on-policy texts, for some of the steps.
    """

    student: Student
    teacher: Teacher
    batches: Batches
    rules: Rules
    on_policy: OnPolicyTexts | None = None

    def add(self, step: int, steps: int, checkpoint_step: int = 0) -> float:
        """Add the gradients of a step; return the mean loss at depth 1.

        Args:
            step: number of the step, from 0.
            steps: number of steps of the training.
            checkpoint_step: step of the last checkpoint, for the message.
        """
        parts = self._parts(step)
        rows = max(1, sum(int(batch.in_continuation.sum()) for _, batch in parts))
        total = 0.0
        moment = Moment(min(step / max(steps, 1), 1.0), self.batches.seed + step)
        for numbers, batch in parts:
            with products(batch.ids.device, self.rules.products):
                losses = list(self._losses(batch, moment))
            summed = sum(
                (values.sum() * DEPTH_DECAY**d for d, values in enumerate(losses)), torch.zeros(())
            )
            if not bool(torch.isfinite(summed)):
                listed = ", ".join(map(str, numbers[:MAX_TEXTS_NAMED]))
                raise DataError(
                    f"the loss is {float(summed.detach())} (step {step + 1}, texts {listed}): "
                    f"expected a number. The checkpoint of step {checkpoint_step} is kept. Give a "
                    "lower `rate`, or another `loss`"
                )
            torch.autograd.backward(summed / rows)
            total += float(losses[0].detach().sum())
        return total / rows

    def _parts(self, step: int) -> list[tuple[list[int], Batch]]:
        """Return text numbers and batches of a step."""
        parts = self.batches.parts(step, self.rules.micro_tokens)
        if self.on_policy is None or not self.on_policy.is_due(step):
            return [(numbers, self.batches.together(numbers)) for numbers in parts]
        texts = self.batches.texts
        return [
            (
                numbers,
                self.on_policy.batch(self.student, [texts[i] for i in numbers], (step, numbers[0])),
            )
            for numbers in parts
        ]

    def _losses(self, batch: Batch, moment: Moment) -> Iterable[Tensor]:
        rules, ids, vocab = self.rules, self.student.ids, self.teacher.vocab
        unused = rules.lawless and not self.student.reads(self.teacher.layers)
        lesson = NOTHING if unused else self.teacher.teach(batch)
        warp = rules.warp if rules.warped else None
        heat = rules.warp.temperature if rules.warped and rules.warp.temperature > 0 else 1.0
        target = None if rules.lawless else TargetLaw(batch, lesson, ids, warp)
        for guess in self.student.taught(batch, lesson, moment):
            law = student_law(guess, batch, ids, vocab, heat)
            values = rules.loss(law if target is None else target.beside(law, guess))
            yield values if guess.extra is None else values + guess.extra

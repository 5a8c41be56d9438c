"""The gradients of a step: the loss of a batch, a part at a time, over all that learn together."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.distributed.process_group import SingleProcess
from spsbench.errors import DataError
from spsbench.loop.sampling import Warp
from spsbench.training.batches import FLOAT32, Batches, OwnTexts, products
from spsbench.training.losses import Loss
from spsbench.training.students.student import Batch, Moment, Student, TeacherOutput
from spsbench.training.teacher import Teacher, student_law, with_law

# How a student is taught, and when that ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of one course.

    Attributes:
        warped: whether the loss is of laws as they will be used.
        lawless: whether the loss is of the target's tokens, and not of its laws.
        steps: how many; None: what the minutes allow.
        evaluations: looks at acceptance.
        patience: looks without a rise until it ends; 0: never.
        worth: ends where less speed-up is foreseen; 0: never.
        products: the numbers that they are computed in.
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


FADES = 0.8  # weight of a depth beside the one before (EAGLE-3's code)
SHOWN = 8  # texts that a message names
NOTHING = TeacherOutput((), torch.empty(0))  # of a target that nobody asks


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of a student on the texts of a step.

    Attributes:
        own: texts that the student writes itself, for some of the steps.
    """

    student: Student
    teacher: Teacher
    batches: Batches
    rules: Rules
    group: SingleProcess
    own: OwnTexts | None = None

    def add(self, step: int, steps: int, kept: int = 0) -> float:
        """Add those of a step, the same on all ranks; the mean loss of a row at depth 1.

        Args:
            steps: of the whole course.
            kept: the step of the last checkpoint, for the message.

        Raises:
            DataError: a loss that is no number.
        """
        parts = self._parts(step)
        rows = sum(self.group.all_gather(sum(int(batch.wanted.sum()) for _, batch in parts)))
        total, broken = 0.0, ""
        moment = Moment(min(step / max(steps, 1), 1.0), self.batches.seed + step)
        for numbers, batch in parts:
            with products(batch.ids.device, self.rules.products):
                each = list(self._losses(batch, moment))
            summed = sum(
                (values.sum() * FADES**d for d, values in enumerate(each)), torch.zeros(())
            )
            if not bool(torch.isfinite(summed)):
                broken = f"{float(summed.detach())}, {', '.join(map(str, numbers[:SHOWN]))}"
                break
            torch.autograd.backward(summed / max(rows, 1))
            total += float(each[0].detach().sum())
        found = self.group.all_gather((total, broken))
        if wrong := next((each for _, each in found if each), ""):
            value, numbers_of = wrong.split(", ", 1)
            raise DataError(
                f"the loss is {value} (step {step + 1}, texts {numbers_of}): expected a number. "
                f"The checkpoint of step {kept} is kept. Give a lower --rate, or another --loss"
            )
        self.group.sum_gradients(self.student.network)
        return sum(part for part, _ in found) / max(rows, 1)

    def _parts(self, step: int) -> list[tuple[list[int], Batch]]:
        """Of a step, those of this rank."""
        tokens = min(self.rules.micro_tokens, -(-self.batches.tokens // self.group.size))
        parts = self.group.shard(self.batches.parts(step, tokens))
        if self.own is None or not self.own.is_due(step):
            return [(numbers, self.batches.together(numbers)) for numbers in parts]
        texts = self.batches.texts
        return [
            (numbers, self.own.batch(self.student, [texts[i] for i in numbers], (step, numbers[0])))
            for numbers in parts
        ]

    def _losses(self, batch: Batch, moment: Moment) -> Iterable[Tensor]:
        rules, ids, vocab = self.rules, self.student.ids, self.teacher.vocab
        unasked = rules.lawless and not self.student.reads(self.teacher.layers)
        lesson = NOTHING if unasked else self.teacher.teach(batch)
        warp = rules.warp if rules.warped else None
        heat = rules.warp.temperature if rules.warped and rules.warp.temperature > 0 else 1.0
        for guess in self.student.taught(batch, lesson, moment):
            told = student_law(guess, batch, ids, vocab, heat)
            values = rules.loss(told if rules.lawless else with_law(told, guess, lesson, ids, warp))
            yield values if guess.extra is None else values + guess.extra

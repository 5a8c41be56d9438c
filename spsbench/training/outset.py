"""From a student and its texts to a course that can run."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.distributed.process_group import SingleProcess
from spsbench.errors import UsageError
from spsbench.loop.sampling import Warp
from spsbench.settings.commands import DraftTraining, HeadTraining, Training
from spsbench.spec import Spec
from spsbench.training.course.batches import Batches, together
from spsbench.training.course.course import Course
from spsbench.training.course.estimate import check_room, needed
from spsbench.training.course.features import Features
from spsbench.training.course.outlook import Prices
from spsbench.training.course.own import Key, OwnTexts
from spsbench.training.course.rules import Rules
from spsbench.training.course.teacher import Teacher
from spsbench.training.folder import Folder
from spsbench.training.losses.table import ACCEPTANCES, LAWLESS, loss_of
from spsbench.training.students.student import Student
from spsbench.training.text.many import continued
from spsbench.training.text.writing import Text

log = logging.getLogger(__name__)


def loss_spec(asked: Training) -> Spec:
    """The loss that was asked for, or is usual.

    Raises:
        UsageError: one that texts of the student's own cannot have.
    """
    features = isinstance(asked, HeadTraining) and asked.kind in ("eagle", "falcon")
    loss = asked.loss or Spec("kl" if features else "hybrid")
    loss_of(loss)
    if asked.on_policy and loss.name in LAWLESS:
        raise UsageError(
            f"--on-policy {asked.on_policy:g} with --loss {loss.name}: expected a loss of laws, "
            "since the tokens of such texts are not the target's. Choose another --loss"
        )
    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Outset:
    """What a student begins with.

    Attributes:
        loss: that is lowered.
        learnt: texts to learn from.
        kept: texts held out.
        eos: tokens that end a text.
        numbers: that products are computed in.
    """

    asked: DraftTraining | HeadTraining
    loss: Spec
    student: Student
    teacher: Teacher
    learnt: Sequence[Text]
    kept: Sequence[Text]
    eos: frozenset[int]
    folder: Folder
    group: SingleProcess
    numbers: str

    def check(self) -> None:
        """Whether it can learn as it was asked to, with what is there of memory and disk.

        Raises:
            OutOfMemoryError: too little of either.
        """
        asked, student = self.asked, self.student
        student.recompute = asked.recompute
        longest = max(len(prompt) + len(text) for prompt, text in self.learnt)
        parameters = student.describe()["parameters"]
        need = needed(
            parameters,
            min(asked.micro_tokens + longest, 2 * asked.micro_tokens),
            self.teacher.vocab,
            self.teacher.width,
            self.teacher.layers,
            student.depth,
            student.passes,
            student.recompute,
        )
        log.info(f"{parameters:,} parameters learn; it needs about {need}")
        check_room(need, self.folder.path, self.teacher.parts.device)

    def features(self, of: Mapping[str, str]) -> Features | None:
        """The target's hidden states, on disk, if they were asked for: rank 0 has them computed.

        Args:
            of: which target it is.
        """
        if not self.asked.store_features:
            return None
        count = self.teacher.layers
        layers = sorted({*self.student.reads(count), count})
        place = self.group.broadcast(self.folder.features.absolute())
        found = Features(place, self.teacher, [*self.learnt, *self.kept], layers, of, self.numbers)
        if self.group.leads:
            found.check_room()
            log.info(f"hidden states of {found.tokens:,} tokens are kept while it learns")
            found.write()
        self.group.broadcast(None)
        found.open()
        return found

    def course(
        self,
        teacher: Teacher,
        price: Callable[[Path, str, Path], Prices | None],
        told: Callable[[Course], None],
        stop: Callable[[], bool],
    ) -> Course:
        """Everything that a course needs; the result's folder is there, with what begins to learn.

        Args:
            teacher: who teaches.
            price: what rounds cost; it is given that folder, the drafter, and the file of costs.
            told: called after each look.
            stop: asked after each step whether to end.
        """
        asked, device, student = self.asked, teacher.parts.device, self.student
        rules = Rules(
            loss=loss_of(self.loss),
            warp=self._warp,
            warped=self.loss.name in ACCEPTANCES,
            lawless=self.loss.name in LAWLESS,
            rate=asked.rate or student.rate,
            steps=asked.steps,
            minutes=asked.minutes,
            micro_tokens=asked.micro_tokens,
            evaluations=asked.evaluations,
            patience=asked.patience,
            worth=asked.worth,
            products=self.numbers,
        )
        kept = self.kept
        each = max(1, asked.micro_tokens // max(len(p) + len(t) for p, t in kept))
        held = [together(kept[i : i + each], device) for i in range(0, len(kept), each)]
        prices = None
        if self.group.leads:
            student.write(self.folder.result, getattr(torch, asked.save_as))
            prices = price(self.folder.result, student.drafter, self.folder.costs)
        return Course(
            student,
            teacher,
            Batches(self.learnt, asked.batch_tokens, asked.seed, device),
            held,
            rules,
            self.folder.checkpoints,
            prices=prices,
            own=OwnTexts(asked.on_policy, self._write, device) if asked.on_policy else None,
            group=self.group,
            told=told,
            stop=stop,
        )

    @property
    def _warp(self) -> Warp:
        return Warp(self.asked.temperature, top_p=self.asked.top_p)

    def _write(
        self, student: Any, prompts: Sequence[list[int]], key: Key, most: int
    ) -> list[list[int]]:
        """What the student writes itself."""
        step, number = key
        return continued(
            student.network,
            prompts,
            most=most,
            warp=self._warp,
            ends=self.eos,
            vocab=self.teacher.vocab,
            seed=((self.asked.seed * 1_000_003 + step) * 1_000_003 + number) * 2 + 1,
        )

"""From a student and its texts to a course that can run."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spsbench.distributed.process_group import SingleProcess
from spsbench.errors import OutOfMemoryError, UsageError
from spsbench.hardware.files import in_words
from spsbench.loop.sampling import Warp
from spsbench.models.devices import free_bytes
from spsbench.settings.commands import DraftTraining, HeadTraining, Training
from spsbench.spec import Spec
from spsbench.training.acceptance import Prices
from spsbench.training.batches import Batches, Key, OwnTexts, together
from spsbench.training.checkpoint import KEPT
from spsbench.training.folder import Folder
from spsbench.training.generation import Text, continue_texts
from spsbench.training.gradients import Rules
from spsbench.training.loop import TrainingLoop
from spsbench.training.losses import ACCEPTANCES, LAWLESS, loss_of
from spsbench.training.students.student import Student
from spsbench.training.teacher import Features, Teacher

# What a training needs of memory and disk, before anything starts.

OPTIMISER = 3  # the weights and two moments, float32
ACTIVATIONS = 40  # rows of hidden states that a layer leaves for its gradient
PASS = 6  # float32 rows of laws that are alive at once


class Need(NamedTuple):
    """Bytes."""

    memory: int
    disk: int

    def __str__(self) -> str:
        return f"{in_words(self.memory)} of memory and {in_words(self.disk)} of disk"


def needed(
    parameters: int,
    rows: int,
    vocab: int,
    width: int,
    layers: int,
    depth: int,
    passes: int,
    recompute: bool = False,
) -> Need:
    """For weights, gradients and moments; the laws of a part of a batch; and what is written.

    Args:
        parameters: that are taught.
        rows: tokens done at a time.
        vocab: columns of a law.
        width: of hidden states.
        layers: of the target, all of whose hidden states are there.
        depth: guesses whose laws are kept for the gradient.
        passes: layers, or passes over them, whose activations are.
        recompute: of all but one of them only what went in is kept.
    """
    learnt = parameters * 4 * (OPTIMISER + 1)
    laws = rows * vocab * 4 * (PASS + 2 * depth)
    inner = ACTIVATIONS + passes if recompute else ACTIVATIONS * passes
    states = rows * width * 4 * (layers + inner)
    written = parameters * 4 * OPTIMISER * (KEPT + 1) + parameters * 8
    return Need(learnt + laws + states, written)


def check_room(need: Need, folder: Path, device: torch.device) -> None:
    """Refuse what cannot end well.

    Raises:
        OutOfMemoryError: the disk, or the memory, has less.
    """
    free = shutil.disk_usage(folder).free
    if need.disk > free:
        raise OutOfMemoryError(
            f"checkpoints and the result need {in_words(need.disk)}, {in_words(free)} are free "
            f"({folder}): expected room. Name another place with --out"
        )
    memory = free_bytes(device)
    if memory and need.memory > memory:
        raise OutOfMemoryError(
            f"learning needs {in_words(need.memory)}, {device} has {in_words(memory)} free: "
            "expected enough. Give fewer --micro-tokens, or a smaller student"
        )


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
class Setup:
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
        told: Callable[[TrainingLoop], None],
        stop: Callable[[], bool],
    ) -> TrainingLoop:
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
        return TrainingLoop(
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
        return continue_texts(
            student.network,
            prompts,
            most=most,
            warp=self._warp,
            ends=self.eos,
            vocab=self.teacher.vocab,
            seed=((self.asked.seed * 1_000_003 + step) * 1_000_003 + number) * 2 + 1,
        )

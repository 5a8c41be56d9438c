"""The setup of a training: memory and disk that it needs, and the training loop that runs it."""

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

OPTIMISER = 3  # the weights and two moments, float32
ACTIVATIONS = 40  # rows of hidden states that a layer keeps for its gradient
PASS = 6  # float32 rows of distributions allocated at once


class Need(NamedTuple):
    """Bytes of memory and disk that a training needs."""

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
    """Return the bytes for weights, gradients, moments and distributions, and for the files.

    Args:
        parameters: number of trained parameters.
        rows: tokens of a forward and backward pass.
        vocab: columns of a distribution.
        width: width of hidden states.
        layers: layers of the target, whose hidden states are all kept.
        depth: predictions whose distributions are kept for the gradient.
        passes: layers, or passes over them, whose activations are kept.
        recompute: keep only the inputs of all passes but one.
    """
    learnt = parameters * 4 * (OPTIMISER + 1)
    laws = rows * vocab * 4 * (PASS + 2 * depth)
    inner = ACTIVATIONS + passes if recompute else ACTIVATIONS * passes
    states = rows * width * 4 * (layers + inner)
    written = parameters * 4 * OPTIMISER * (KEPT + 1) + parameters * 8
    return Need(learnt + laws + states, written)


def check_room(need: Need, folder: Path, device: torch.device) -> None:
    """Refuse a training that exceeds the free disk or memory.

    Raises:
        OutOfMemoryError: too little disk or memory is free.
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
    """Return the loss that a user asks for, or the default of the drafter's kind.

    Raises:
        UsageError: a loss of the target's tokens, with on-policy texts.
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
    """The parts of a training, before its loop is built.

    Attributes:
        asked: settings of the training.
        loss: the loss to minimise.
        student: the network that learns.
        teacher: the target.
        learnt: training texts.
        kept: held-out texts.
        eos: tokens that end a text.
        folder: files of the training.
        group: data-parallel ranks.
        numbers: dtype of matrix products.
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
        """Check that free memory and disk suffice for the training as configured.

        Raises:
            OutOfMemoryError: too little memory or disk is free.
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
        """Return the target's hidden states on disk, which rank 0 computes, or None.

        None without --store-features.

        Args:
            of: identity of the target.
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
        """Write the untrained student into the result folder, and return the training loop.

        Args:
            teacher: the target, or stored hidden states of it.
            price: returns the costs of rounds; takes the result folder, the drafter's kind and
                the file that caches the costs.
            told: callback after each evaluation.
            stop: returns whether to stop; polled after each step.
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
        """Return continuations of `prompts` by the student."""
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

"""The steps of a training: open the models, get texts, make a student, learn, export the result."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.eager import logits_width
from spsbench.errors import OutOfMemoryError, UsageError
from spsbench.extensions.training.acceptance import Gain, best_gain
from spsbench.extensions.training.batches import (
    BFLOAT16,
    FLOAT32,
    Batches,
    Teacher,
    collate_within,
    compute_dtype,
)
from spsbench.extensions.training.export import Trained, finish
from spsbench.extensions.training.folder import (
    KEPT,
    PRODUCTS,
    Folder,
    begin,
    identity,
    of_texts,
    open_training,
    resumed_manifest,
)
from spsbench.extensions.training.loop import TrainingLoop
from spsbench.extensions.training.losses import TOKEN_LOSSES, loss_of
from spsbench.extensions.training.options import DraftTraining, HeadTraining, Training
from spsbench.extensions.training.prompts import (
    BenchmarkIndex,
    collect_prompts,
    excluded_sources,
    references_of,
    uses_chat,
)
from spsbench.extensions.training.students.student import Student
from spsbench.extensions.training.students.table import build_student
from spsbench.extensions.training.texts import (
    TargetTexts,
    Text,
    Writer,
    check_texts_target,
    read_head,
    read_texts,
    split,
    write_texts,
)
from spsbench.hardware.files import in_words
from spsbench.messages import ignore, no_lines
from spsbench.methods.build import use_threads
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.models.devices import find_device, free_bytes
from spsbench.models.source import source_of
from spsbench.models.tokenizers import eos_ids, model_token_count
from spsbench.pair.load import load
from spsbench.planning.measure import measure_costs
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.provenance import digest, hash_files

log = logging.getLogger(__name__)


@dataclass
class Trainer:
    """Trains one drafter, in a folder that can be continued."""

    target: ModelSpec
    options: DraftTraining | HeadTraining
    pair_options: Mapping[str, Any]  # the target's settings, as options of `spsbench.load`
    place: OutputFolder
    access: Access
    command: Sequence[str] = ()  # command line of the user, for the model card
    watch: Callable[[Any], None] = ignore  # called with the `TrainingLoop` after each evaluation
    stop: Callable[[], bool] = lambda: False  # polled; True ends the work, finished pieces stay

    def run(self) -> Trained | None:
        """Open the models, get texts, train and export; None if stopped: `resume` continues.

        The folder is locked, and removed if it is new and the training is refused before the first
        text. SpsError: options, prompts, models or a folder that do not fit, too little memory or
        disk, or a loss that is no number. Threads are set for the process.
        """
        options, target = self.options, self.target
        use_threads(self.access.threads)
        loss = loss_spec(options)
        measured = None if options.costs is None else read_costs(options.costs)
        source = source_of(target, self.access)
        target_folder = source.locate(target)
        self.tokenizer = source.tokenizer(target_folder)
        self.chat = uses_chat(self.tokenizer, options.chat)
        self.overlap = BenchmarkIndex(excluded_sources(options.not_from))
        prompts = collect_prompts(options, self.tokenizer, self.chat, self.overlap)
        references = references_of(options, self.tokenizer, self.chat, self.overlap)
        if options.texts is not None:
            read_head(options.texts)
        files = hash_files(target_folder, target.adapter)
        folder = open_training(self.place)
        dtype = self._compute_dtype(folder)
        with folder.gone_if_refused(), Lock(folder.lock):
            settings = identity(target, options, digest(files), loss, dtype)
            begin(folder, settings, bool(self.place.resume))
            model = source.model(target_folder)
            if dtype == BFLOAT16 and target.dtype == "auto":
                model = model.to(torch.bfloat16)
            vocab = model_token_count("target", logits_width(model), self.tokenizer)
            self.ends = eos_ids(target_folder, self.tokenizer)
            self.teacher = Teacher(model, vocab)
            student = self._student(torch.zeros(vocab))  # refused before the target writes
            texts = self._texts(folder, files, prompts)
            if texts is None:
                return None
            learnt, held_out = split(texts, options.held_out, options.seed)
            learnt += references
            if options.whole:
                learnt = [(prompt[:1], prompt[1:] + text) for prompt, text in learnt]
            log.info(
                f"texts: {len(learnt)} to learn from, {len(held_out)} held out, {texts.tokens} "
                f"tokens written by the target, "
                f"{sum(len(text) for _, text in references)} by people"
            )
            if isinstance(options, HeadTraining):
                tokens = torch.tensor([t for text in learnt for part in text for t in part])
                student = self._student(torch.bincount(tokens, minlength=vocab))
            loop = self._loop(folder, student, learnt, held_out, loss, dtype)
            student.write(folder.result, getattr(torch, options.save_as))
            loop.best_gain = self._best_gain(folder, student.drafter, measured)
            if not loop.run():
                return None
            return finish(loop, folder, texts, target, self.chat, self.command)

    def _compute_dtype(self, folder: Folder) -> str:
        """Return the dtype of products: on resume the manifest's, else the faster one, logged."""
        if manifest := resumed_manifest(folder, bool(self.place.resume)):
            return str(manifest.get(PRODUCTS, FLOAT32))
        dtype = compute_dtype(find_device(self.target.device))
        log.info(f"products in {dtype}; weights and losses in float32")
        return dtype

    def _student(self, counts: Tensor) -> Student:
        """Return a new student; `counts`: [V] how often each token occurs in the texts."""
        return build_student(self.options, self.teacher, self.tokenizer, self.target.id, counts)

    def _texts(
        self, folder: Folder, files: Mapping[str, str], prompts: Sequence[list[int]]
    ) -> TargetTexts | None:
        """Return the target's texts, written here or read from `texts`; None if stopped before."""
        options, teacher = self.options, self.teacher
        dtype = str(teacher.model.dtype)[6:]
        header = of_texts(self.target, options, files, teacher.vocab, self.chat, dtype)
        path = options.texts or folder.texts
        if options.texts is not None:
            check_texts_target(read_head(path), header, path)
        else:
            of_target = (teacher.model, self.tokenizer, self.ends, teacher.vocab)
            writer = Writer(*of_target, options, self.chat, prompts)
            if not write_texts(path, header, writer, self.stop):
                return None
        return read_texts(path, self.overlap, self.tokenizer.decode)

    def _loop(
        self,
        folder: Folder,
        student: Student,
        learnt: Sequence[Text],
        held_out: Sequence[Text],
        loss: Spec,
        dtype: str,
    ) -> TrainingLoop:
        """Return the training loop, without `best_gain`; an evaluation rewrites the folder's log.

        OutOfMemoryError: the training exceeds the free disk or memory. A note is logged where no
        text is longer than the window of a draft model.
        """
        options, device = self.options, self.teacher.parts.device
        longest = max(len(prompt) + len(text) for prompt, text in learnt)
        check_room(options, student, self.teacher, longest, folder.path)
        if isinstance(options, DraftTraining) and longest <= (options.window or 0):
            log.info(
                f"note: texts of up to {longest} tokens stay within a window of "
                f"{options.window}: with more `tokens` it learns to go beyond"
            )

        def watch(loop: TrainingLoop) -> None:
            lines = "".join(json.dumps(point.to_json()) + "\n" for point in loop.evaluations)
            replace_file(folder.log, lines.encode())
            self.watch(loop)

        return TrainingLoop(
            student,
            self.teacher,
            Batches(learnt, options.batch_tokens, options.seed),
            collate_within(held_out, options.micro_tokens, device),
            options,
            loss,
            folder.checkpoints,
            dtype=dtype,
            ends=self.ends,
            watch=watch,
            stop=self.stop,
        )

    def _best_gain(
        self, folder: Folder, drafter: str, measured: Any
    ) -> Callable[[Sequence[float]], Gain] | None:
        """Return a function from a reach to its best gain, by the costs of a round; None: no costs.

        Costs are `measured`, the `Costs` that a user gave; else, unless `cost_seconds` is 0, the
        folder's, or measured here with the drafter in `result`. They depend on its shape alone, and
        are kept in the folder. Without those of the kind `drafter` a note is logged: None.
        """
        options = self.options
        if measured is not None:
            costs = measured
        elif options.cost_seconds == 0:
            return None
        elif folder.costs.is_file():
            costs = read_costs(folder.costs)
            log.info(f"using the costs measured when the training began ({folder.costs})")
        else:
            log.info(
                f"measuring the cost of a round, for {options.cost_seconds:g} s (`cost_seconds`)"
            )
            drafted = {"draft": str(folder.result), "drafter": drafter, "k": 4}
            sampling = {"temperature": options.temperature, "top_p": options.top_p}
            pair_options = {**self.pair_options, **drafted, **sampling}
            with no_lines():
                pair = load(**pair_options, offline=True, threads=self.access.threads)
            costs = measure_costs(pair, seconds=options.cost_seconds)
        if costs is not measured or not folder.costs.is_file():
            replace_file(folder.costs, dumps(costs).encode())
        method = next((arm for arm in costs.arms if arm.drafter.name == drafter), None)
        if method is None:
            path = options.costs or folder.costs
            log.info(f"note: {path} has no costs of {drafter}: no speed-up is predicted")
        return None if method is None else partial(best_gain, costs, method)


def loss_spec(options: Training) -> Spec:
    """Return the user's loss, or the kind's; UsageError: unknown, or of tokens with `on_policy`."""
    features = isinstance(options, HeadTraining) and options.kind in ("eagle", "falcon")
    loss = options.loss or Spec("kl" if features else "hybrid")
    loss_of(loss)
    if options.on_policy and loss.name in TOKEN_LOSSES:
        raise UsageError(
            f"`on_policy` {options.on_policy:g} with `loss` {loss.name}: expected a loss of "
            "distributions, since the tokens of such texts are not the target's. Choose another "
            "`loss`"
        )
    return loss


OPTIMISER = 3  # the weights and two moments, float32
ACTIVATIONS = 40  # rows of hidden states that a layer keeps for its gradient
PASS = 6  # float32 rows of distributions allocated at once


def check_room(
    options: Training, student: Student, teacher: Teacher, longest: int, folder: Path
) -> None:
    """Log what a training needs; OutOfMemoryError: more than the free disk or memory.

    Memory holds weights, gradients, moments, distributions, activations and all hidden states of
    the target; the disk, at `folder`, checkpoints and result. `longest` is in tokens, of a text.
    """
    parameters, config = student.describe()["parameters"], teacher.parts.config
    width, layers = int(config.hidden_size), int(config.num_hidden_layers)
    rows = min(options.micro_tokens + longest, 2 * options.micro_tokens)
    memory = parameters * 4 * (OPTIMISER + 1)
    memory += rows * teacher.vocab * 4 * (PASS + 2 * student.depth)
    memory += rows * width * 4 * (layers + ACTIVATIONS * student.passes)
    disk = parameters * 4 * OPTIMISER * (KEPT + 1) + parameters * 8
    log.info(
        f"{parameters:,} parameters learn; it needs about {in_words(memory)} of memory and "
        f"{in_words(disk)} of disk"
    )
    if disk > (free := shutil.disk_usage(folder).free):
        raise OutOfMemoryError(
            f"checkpoints and the result need {in_words(disk)}, {in_words(free)} are free "
            f"({folder}): expected room. Name another place with `out`"
        )
    device = teacher.parts.device
    if (free := free_bytes(device)) and memory > free:
        raise OutOfMemoryError(
            f"learning needs {in_words(memory)}, {device} has {in_words(free)} free: "
            "expected enough. Give fewer `micro_tokens`, or a smaller student"
        )

"""The steps of a training: load the models, get texts, run the training loop, export the result."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.benchmark.conductor import Conductor
from spsbench.engines.eager import rows_of
from spsbench.errors import OutOfMemoryError, UsageError
from spsbench.extensions.training.acceptance import DrafterCosts
from spsbench.extensions.training.batches import (
    BFLOAT16,
    FLOAT32,
    Batches,
    Key,
    OnPolicyTexts,
    quicker,
    together_within,
)
from spsbench.extensions.training.export import Trained, finish
from spsbench.extensions.training.folder import (
    PRODUCTS,
    Folder,
    begin,
    identity,
    of_texts,
    open_training,
    resumed_manifest,
)
from spsbench.extensions.training.generation import Writer, continue_texts
from spsbench.extensions.training.gradients import Rules
from spsbench.extensions.training.loop import KEPT, TrainingLoop
from spsbench.extensions.training.losses import ACCEPTANCES, LAWLESS, loss_of
from spsbench.extensions.training.options import DraftTraining, HeadTraining, Training
from spsbench.extensions.training.prompts import (
    Overlap,
    excluded_sources,
    in_chat,
    prompts_of,
    references_of,
)
from spsbench.extensions.training.students.student import Student
from spsbench.extensions.training.students.table import build_student, check_options
from spsbench.extensions.training.teacher import Teacher
from spsbench.extensions.training.texts import (
    check_target,
    parted,
    read,
    read_head,
    write_texts,
)
from spsbench.hardware.files import in_words
from spsbench.loop.sampling import Warp
from spsbench.models.devices import free_bytes
from spsbench.models.loader import load_model
from spsbench.models.source import source_of
from spsbench.models.tokenizers import eos_ids, token_count
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.provenance import digest, hash_files

log = logging.getLogger(__name__)

Price = Callable[[Path, str, Path], DrafterCosts | None]
"""Costs of a drafter: (its folder, its kind, the file that caches the costs) -> costs."""


@dataclass(kw_only=True)
class Trainer(Conductor):
    """Trains one drafter, in a folder that can be continued.

    Args:
        target: the target of the drafter.
        options: all other settings.
        price: measures the costs of rounds, with the untrained student.
        command: command line of the user.
    """

    target: ModelSpec
    options: DraftTraining | HeadTraining
    price: Price
    command: Sequence[str] = ()

    def run(self) -> Trained | None:
        """Train to the end; return None if stopped, so that `resume` can continue."""
        options, target = self.options, self.target
        self.use_threads(self.access.threads)
        loss = loss_spec(options)
        source = source_of(target, self.access)
        target_folder = source.locate(target)
        tokenizer = source.tokenizer(target_folder)
        chat = in_chat(tokenizer, options.chat)
        check_options(options, target_folder, tokenizer, self._load)
        overlap = Overlap(excluded_sources(options.not_from))
        prompts = prompts_of(options, tokenizer, chat, overlap)
        references = references_of(options, tokenizer, chat, overlap)
        files = hash_files(target_folder)
        folder = open_training(self.place)
        products = self._products(folder, target.device)
        with folder.gone_if_refused(), Lock(folder.lock):
            mine = identity(target, options, digest(files), loss, products)
            begin(folder, mine, bool(self.place.resume))
            model = source.model(target_folder)
            if products == BFLOAT16 and target.dtype == "auto":
                model = model.to(torch.bfloat16)
            vocab = token_count("target", rows_of(model), tokenizer)
            eos = eos_ids(target_folder, tokenizer)
            teacher = Teacher(model, vocab)
            header = of_texts(target, options, files, vocab, chat, str(model.dtype)[6:])
            path = options.texts or folder.texts
            if options.texts is None:
                writer = Writer(model, tokenizer, eos, vocab, options, chat, prompts)
                if not write_texts(path, header, writer, self.stop):
                    return None
            else:
                check_target(read_head(path), header, path)
            texts = read(path, overlap, tokenizer.decode)
            learnt, held_out = parted(texts, options.held_out, options.seed)
            learnt += references
            if options.whole:
                learnt = [(prompt[:1], prompt[1:] + text) for prompt, text in learnt]
            log.info(
                f"texts: {len(learnt)} to learn from, {len(held_out)} held out, {texts.tokens} "
                f"tokens written by the target, "
                f"{sum(len(text) for _, text in references)} by people"
            )
            counts = torch.bincount(
                torch.tensor([t for text in learnt for part in text for t in part]), minlength=vocab
            )
            student = build_student(options, teacher, tokenizer, target.id, counts, self._load)
            longest = max(len(prompt) + len(text) for prompt, text in learnt)
            check_room(options, student, teacher, longest, folder.path)
            if isinstance(options, DraftTraining) and longest <= (options.window or 0):
                log.info(
                    f"note: texts of up to {longest} tokens stay within a window of "
                    f"{options.window}: with more `tokens` it learns to go beyond"
                )
            rules = rules_of(options, loss, student, products)
            batches = Batches(learnt, options.batch_tokens, options.seed, teacher.parts.device)
            on_policy = on_policy_texts(options, teacher, eos) if options.on_policy else None
            student.write(folder.result, getattr(torch, options.save_as))
            course = TrainingLoop(
                student,
                teacher,
                batches,
                together_within(held_out, options.micro_tokens, teacher.parts.device),
                rules,
                folder.checkpoints,
                prices=self.price(folder.result, student.drafter, folder.costs),
                on_policy=on_policy,
                watch=lambda course: self._log(course, folder),
                stop=self.stop,
            )
            if not course.run():
                return None
            return finish(course, folder, texts, options, target, loss, chat, self.command)

    def _products(self, folder: Folder, device: str) -> str:
        """Return the dtype of products: from the manifest on resume, else the faster one."""
        if begun := resumed_manifest(folder, bool(self.place.resume)):
            return str(begun.get(PRODUCTS, FLOAT32))
        chosen = quicker(torch.device(device))
        log.info(f"products in {chosen}; weights and losses in float32")
        return chosen

    def _load(self, folder: Path) -> Any:
        return load_model(folder, ModelSpec("", device=self.target.device, dtype="float32"))

    def _log(self, course: TrainingLoop, folder: Folder) -> None:
        lines = "".join(json.dumps(look.to_json()) + "\n" for look in course.looks)
        replace_file(folder.log, lines.encode())
        self.watch(course)


def loss_spec(options: Training) -> Spec:
    """Return the loss that a user asks for, or the default of the drafter's kind."""
    features = isinstance(options, HeadTraining) and options.kind in ("eagle", "falcon")
    loss = options.loss or Spec("kl" if features else "hybrid")
    loss_of(loss)
    if options.on_policy and loss.name in LAWLESS:
        raise UsageError(
            f"`on_policy` {options.on_policy:g} with `loss` {loss.name}: expected a loss of laws, "
            "since the tokens of such texts are not the target's. Choose another `loss`"
        )
    return loss


OPTIMISER = 3  # the weights and two moments, float32
ACTIVATIONS = 40  # rows of hidden states that a layer keeps for its gradient
PASS = 6  # float32 rows of distributions allocated at once


def check_room(
    options: Training, student: Student, teacher: Teacher, longest: int, folder: Path
) -> None:
    """Refuse a training that exceeds the free disk or memory.

    Memory holds weights, gradients, moments, distributions and activations; the disk checkpoints
    and the result.

    Args:
        options: settings of the training.
        student: the network that learns.
        teacher: the target, whose hidden states are all kept.
        longest: tokens of the longest text.
        folder: folder of the files.
    """
    parameters = student.describe()["parameters"]
    rows = min(options.micro_tokens + longest, 2 * options.micro_tokens)
    memory = parameters * 4 * (OPTIMISER + 1)
    memory += rows * teacher.vocab * 4 * (PASS + 2 * student.depth)
    memory += rows * teacher.width * 4 * (teacher.layers + ACTIVATIONS * student.passes)
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


def rules_of(options: Training, loss: Spec, student: Student, products: str) -> Rules:
    """Return the rules of a training from its settings."""
    return Rules(
        loss=loss_of(loss),
        warp=Warp(options.temperature, top_p=options.top_p),
        warped=loss.name in ACCEPTANCES,
        lawless=loss.name in LAWLESS,
        rate=options.rate or student.rate,
        products=products,
        **{name: getattr(options, name) for name in OF_RULES},
    )


OF_RULES = ("steps", "minutes", "micro_tokens", "evaluations", "patience", "worth")


def on_policy_texts(options: Training, teacher: Teacher, eos: frozenset[int]) -> OnPolicyTexts:
    """Return the on-policy texts of a training: continuations of its prompts by the student."""

    def write(student: Any, prompts: Sequence[list[int]], key: Key, most: int) -> list[list[int]]:
        step, number = key
        return continue_texts(
            student.network,
            prompts,
            most=most,
            warp=Warp(options.temperature, top_p=options.top_p),
            ends=eos,
            vocab=teacher.vocab,
            seed=((options.seed * 1_000_003 + step) * 1_000_003 + number) * 2 + 1,
        )

    return OnPolicyTexts(options.on_policy, write, teacher.parts.device)

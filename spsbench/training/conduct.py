"""The steps of a training: load the models, get texts, run the training loop, export the result."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from spsbench.distributed.process_group import SingleProcess, device_of
from spsbench.models.loader import load_model
from spsbench.models.source import source_of
from spsbench.settings.commands import DraftTraining, HeadTraining
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.models import ModelSpec
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.provenance import digest, hash_files
from spsbench.training.acceptance import Prices
from spsbench.training.batches import BFLOAT16, FLOAT32, quicker
from spsbench.training.export import Trained, finish
from spsbench.training.folder import (
    PRODUCTS,
    Folder,
    begin,
    identity,
    noted,
    of_texts,
    opened,
    usual,
)
from spsbench.training.generation import Writer
from spsbench.training.loop import TrainingLoop
from spsbench.training.prompts import Overlap, in_chat, kept_apart, prompts_of
from spsbench.training.setup import Setup, loss_spec
from spsbench.training.students.table import check_asked, made_student
from spsbench.training.teacher import Remembering, Teacher
from spsbench.training.texts import Hands, Texts, check_target, parted, read, read_head, write_texts

log = logging.getLogger(__name__)

Price = Callable[[Path, str, Path], Prices | None]
"""Costs of a drafter: (its folder, its kind, the file that caches the costs) -> costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """A training of one drafter: its settings and the functions that it calls.

    Attributes:
        target: the target of the drafter.
        asked: all other settings.
        place: folder of the training.
        access: offline mode, pickle and threads.
        price: measures the costs of rounds, with the untrained student.
        watch: callback after each evaluation.
        stop: returns whether to stop; polled between steps and batches of texts.
        command: command line of the user.
        group: data-parallel ranks; only rank 0 uses the folder.
        hands: workers that generate the texts; None: this process generates them.
    """

    target: ModelSpec
    asked: DraftTraining | HeadTraining
    place: OutputFolder
    access: Access
    price: Price
    watch: Callable[[TrainingLoop], None]
    stop: Callable[[], bool]
    command: Sequence[str] = ()
    group: SingleProcess = field(default_factory=SingleProcess)
    hands: Hands | None = None

    def run(self) -> Trained | None:
        """Train to the end; return None if stopped, so that --resume can continue.

        Raises:
            SpsError: models, texts, settings or a folder that cannot be used.
        """
        asked, group = self.asked, self.group
        if self.access.threads is not None:
            torch.set_num_threads(self.access.threads)
        loss = loss_spec(asked)
        target = replace(self.target, device=device_of(self.target.device))
        source = source_of(
            target,
            seed=0,
            offline=self.access.offline,
            allow_pickle=self.access.allow_pickle,
        )
        found = source.locate(target)
        tokenizer = source.tokenizer(found)
        chat = in_chat(tokenizer, asked.chat)
        check_asked(asked, found, tokenizer, self._load)
        checks = group.leads or asked.prompts  # the other ranks receive the texts by broadcast
        overlap = Overlap(kept_apart(asked.not_from) if checks else ())
        prompts = prompts_of(asked, tokenizer, chat, overlap)
        files = hash_files(found)
        folder = opened(self.place) if group.leads else Folder(Path())
        numbers = group.broadcast(self._products(folder, target.device) if group.leads else "")
        with folder.gone_if_refused(), self._alone(folder):
            if group.leads:
                mine = identity(self.target, asked, digest(files), loss, numbers)
                begin(folder, mine, usual(asked), bool(self.place.resume))
            model = source.model(found)
            if numbers == BFLOAT16 and target.dtype == "auto":
                model = model.to(torch.bfloat16)
            vocab = source.vocab_size(model, model, tokenizer)
            eos = source.eos(model, tokenizer)
            teacher = Teacher(model, vocab)
            made = of_texts(self.target, asked, files, vocab, chat, str(model.dtype)[6:])
            path = asked.texts or folder.texts
            if asked.texts is None:
                writer = Writer(model, tokenizer, eos, vocab, asked, chat, prompts)
                if not write_texts(path, made, writer, self.stop, self.hands, group):
                    return None
            elif group.leads:
                check_target(read_head(path), made, path)
            texts = group.broadcast(read(path, overlap, tokenizer.decode) if group.leads else _NONE)
            learnt, kept = parted(texts, asked.held_out, asked.seed)
            log.info(
                f"texts: {len(learnt)} to learn from, {len(kept)} held out, {texts.tokens} tokens "
                "written by the target"
            )
            counts = torch.bincount(
                torch.tensor([t for text in learnt for part in text for t in part]), minlength=vocab
            )
            student = made_student(asked, teacher, tokenizer, self.target.id, counts, self._load)
            outset = Setup(
                asked=asked,
                loss=loss,
                student=student,
                teacher=teacher,
                learnt=learnt,
                kept=kept,
                eos=eos,
                folder=folder,
                group=group,
                numbers=numbers,
            )
            outset.check()
            features = outset.features({"target": str(self.target), "files": digest(files)})
            if features is not None:
                teacher = Remembering(teacher, features)
            course = outset.course(
                teacher, self.price, lambda course: self._told(course, folder), self.stop
            )
            if not course.run():
                return None
            group.all_gather(None)  # no rank reads hidden states after this barrier
            if not group.leads:
                return None
            shutil.rmtree(folder.features, ignore_errors=True)
            return finish(course, folder, texts, asked, self.target, loss, chat, self.command)

    def _products(self, folder: Folder, device: str) -> str:
        """Return the dtype of products: from the manifest on resume, else the faster one."""
        if begun := noted(folder, bool(self.place.resume)):
            return str(begun.get(PRODUCTS, FLOAT32))
        chosen = quicker(torch.device(device))
        log.info(f"products in {chosen}; weights and losses in float32")
        return chosen

    def _alone(self, folder: Folder) -> AbstractContextManager[Any]:
        return Lock(folder.lock) if self.group.leads else nullcontext()

    def _load(self, folder: Path) -> Any:
        return load_model(
            folder,
            device=device_of(self.target.device),
            dtype="float32",
            attention=None,
            trust_remote_code=False,
            allow_pickle=False,
        )

    def _told(self, course: TrainingLoop, folder: Folder) -> None:
        if self.group.leads:
            lines = "".join(json.dumps(look.to_json()) + "\n" for look in course.looks)
            replace_file(folder.log, lines.encode())
            self.watch(course)


_NONE = Texts({}, ())

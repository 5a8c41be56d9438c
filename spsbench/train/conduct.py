"""The conduct of a training: models, texts, the course, and what is left in its folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from spsbench.errors import UsageError
from spsbench.loop.sampling import Warp
from spsbench.models.loader import load_model
from spsbench.models.source import source_of
from spsbench.settings.access import Access
from spsbench.settings.models import ModelSpec
from spsbench.settings.place import Place
from spsbench.settings.training import DraftTraining, HeadTraining, Training
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.provenance import digest, hash_files
from spsbench.train.course.batches import Batches, together
from spsbench.train.course.course import Course
from spsbench.train.course.estimate import check_room, needed
from spsbench.train.course.features import Features, Remembering
from spsbench.train.course.outlook import Prices
from spsbench.train.course.own import Key, OwnTexts
from spsbench.train.course.rules import Rules
from spsbench.train.course.teacher import Teacher
from spsbench.train.folder import Folder, begin, opened
from spsbench.train.identity import identity, of_texts, usual
from spsbench.train.losses.table import ACCEPTANCES, loss_of
from spsbench.train.students.student import Student
from spsbench.train.students.table import made_student
from spsbench.train.team import Team, device_of
from spsbench.train.text.asking import in_chat
from spsbench.train.text.many import continued
from spsbench.train.text.overlap import Overlap, tested
from spsbench.train.text.texts import Texts, check_target, parted, read, read_head, written
from spsbench.train.text.writing import Text, Writer
from spsbench.train.written.result import Trained, finish

Price = Callable[[Path, str], Prices | None]
"""Costs of a drafter in a folder, on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """What a training is done with.

    Attributes:
        target: of the drafter.
        asked: everything else.
        place: its folder.
        price: what rounds cost; it is given the student as it begins.
        say: is told, a line each.
        watch: is told after each look.
        stop: asked now and then whether to end.
        command: as the user gave it.
        team: processes that learn together; rank 0 alone has the folder.
    """

    target: ModelSpec
    asked: DraftTraining | HeadTraining
    place: Place
    access: Access
    price: Price
    say: Callable[[str], None]
    watch: Callable[[Course], None]
    stop: Callable[[], bool]
    command: Sequence[str] = ()
    team: Team = field(default_factory=Team)

    def run(self) -> Trained | None:
        """Train to the end; None: it was stopped, and is gone on with by --resume.

        Raises:
            SpsError: models, texts, settings or a folder that cannot be used.
        """
        asked, team = self.asked, self.team
        if self.access.threads is not None:
            torch.set_num_threads(self.access.threads)
        loss = asked.loss or Spec.parse(_loss(asked))
        rule = loss_of(loss)
        if asked.on_policy and loss.name == "ce":
            raise UsageError(
                f"--on-policy {asked.on_policy:g} with --loss ce: expected a loss of laws, since "
                "the tokens of such texts are not the target's. Choose another --loss"
            )
        target = replace(self.target, device=device_of(self.target.device))
        source = source_of(
            target,
            seed=0,
            offline=self.access.offline,
            allow_pickle=self.access.allow_pickle,
            say=self.say,
        )
        found = source.locate(target)
        tokenizer = source.tokenizer(found)
        chat = in_chat(tokenizer, asked.chat)
        files = hash_files(found)
        folder = opened(self.place) if team.leads else Folder(Path())
        with self._alone(folder):
            if team.leads:
                mine = identity(self.target, asked, digest(files), loss)
                begin(folder, mine, usual(asked), bool(self.place.resume))
            checks = team.leads or asked.prompts  # the others are told what was read
            overlap = Overlap(tested(asked.not_from) if checks else ())
            model = source.model(found)
            vocab = source.vocab_size(model, model, tokenizer)
            eos = source.eos(model, tokenizer)
            teacher = Teacher(model, vocab)
            made = of_texts(self.target, asked, files, vocab, chat)
            path = asked.texts or folder.texts
            if asked.texts is None:
                writer = Writer(model, tokenizer, eos, vocab, asked, chat, overlap)
                if not written(path, made, writer, self.say, self.stop, team):
                    return None
            elif team.leads:
                check_target(read_head(path), made, path)
            texts = team.told(read(path, overlap, tokenizer.decode) if team.leads else _NONE)
            learnt, kept = parted(texts, asked.held_out, asked.seed)
            self.say(
                f"texts: {len(learnt)} to learn from, {len(kept)} held out, {texts.tokens} tokens "
                "written by the target"
            )
            counts = torch.bincount(
                torch.tensor([t for text in learnt for part in text for t in part]), minlength=vocab
            )
            student = made_student(asked, teacher, tokenizer, self.target.id, counts, self._load)
            self._recompute(student)
            self._estimate(student, teacher, learnt, folder)
            of = {"target": str(self.target), "files": digest(files)}
            features = self._features(teacher, student, [*learnt, *kept], of, folder)
            if features is not None:
                teacher = Remembering(teacher, features)
            course = self._course(student, teacher, learnt, kept, folder, rule, loss, eos)
            if not course.run():
                return None
            if features is not None:
                team.gathered(None)  # nobody reads them any more
                if team.leads:
                    features.remove()
            if not team.leads:
                return None
            return finish(course, folder, texts, asked, self.target, loss, chat, self.command)

    def _alone(self, folder: Folder) -> AbstractContextManager[Any]:
        return Lock(folder.lock) if self.team.leads else nullcontext()

    def _load(self, folder: Path) -> Any:
        return load_model(
            folder,
            device=device_of(self.target.device),
            dtype="float32",
            attention=None,
            trust_remote_code=False,
            allow_pickle=False,
        )

    def _recompute(self, student: Student) -> None:
        if self.asked.recompute and not student.recomputes:
            raise UsageError(
                f"--recompute with --kind {student.drafter}: expected a student of several layers "
                "or passes; this one has none to compute again. Leave it out"
            )
        student.recompute = self.asked.recompute

    def _estimate(
        self, student: Student, teacher: Teacher, texts: Sequence[Text], folder: Folder
    ) -> None:
        rows = min(
            self.asked.micro_tokens + max(len(p) + len(t) for p, t in texts),
            2 * self.asked.micro_tokens,
        )
        need = needed(
            student.describe()["parameters"],
            rows,
            teacher.vocab,
            teacher.width,
            teacher.layers,
            student.depth,
            student.passes,
            student.recompute,
        )
        self.say(f"{student.describe()['parameters']:,} parameters learn; it needs about {need}")
        check_room(need, folder.path, teacher.parts.device)

    def _features(
        self,
        teacher: Teacher,
        student: Student,
        texts: Sequence[Text],
        of: Mapping[str, str],
        folder: Folder,
    ) -> Features | None:
        """The target's hidden states, on disk; rank 0 computes them, all read them."""
        if not self.asked.store_features:
            return None
        layers = sorted({*student.reads(teacher.layers), teacher.layers})
        place = self.team.told(folder.features.absolute())
        found = Features(place, teacher, texts, layers, of)
        if self.team.leads:
            found.check_room()
            self.say(f"hidden states of {found.tokens:,} tokens are kept while it learns")
            found.write()
        self.team.told(None)
        found.open()
        return found

    def _course(
        self,
        student: Student,
        teacher: Teacher,
        learnt: Sequence[Text],
        kept: Sequence[Text],
        folder: Folder,
        rule: Any,
        loss: Spec,
        eos: frozenset[int],
    ) -> Course:
        asked, device = self.asked, teacher.parts.device
        warp = Warp(asked.temperature, 0, asked.top_p)
        rules = Rules(
            loss=rule,
            warp=warp,
            warped=loss.name in ACCEPTANCES,
            rate=asked.rate or student.rate,
            steps=asked.steps,
            minutes=asked.minutes,
            micro_tokens=asked.micro_tokens,
            evaluations=asked.evaluations,
            patience=asked.patience,
            worth=asked.worth,
        )
        each = max(1, asked.micro_tokens // max(len(p) + len(t) for p, t in kept))
        held = [together(kept[i : i + each], device) for i in range(0, len(kept), each)]
        prices = None
        if self.team.leads:
            student.write(folder.result, getattr(torch, asked.save_as))
            prices = self.price(folder.result, student.drafter)

        def write(writer: Any, prompts: Sequence[list[int]], key: Key, most: int) -> Any:
            seed = ((asked.seed * 1_000_003 + key[0]) * 1_000_003 + key[1]) * 2 + 1
            return continued(
                writer.network,
                prompts,
                most=most,
                warp=warp,
                ends=eos,
                vocab=teacher.vocab,
                seed=seed,
            )

        return Course(
            student,
            teacher,
            Batches(learnt, asked.batch_tokens, asked.seed, device),
            held,
            rules,
            folder.checkpoints,
            prices=prices,
            own=OwnTexts(asked.on_policy, write, device) if asked.on_policy else None,
            team=self.team,
            told=lambda course: self._told(course, folder),
            stop=self.stop,
        )

    def _told(self, course: Course, folder: Folder) -> None:
        if self.team.leads:
            lines = "".join(json.dumps(look.to_json()) + "\n" for look in course.looks)
            replace_file(folder.log, lines.encode())
            self.watch(course)


_NONE = Texts({}, ())


def _loss(asked: Training) -> str:
    return "kl" if isinstance(asked, HeadTraining) and asked.kind == "eagle" else "hybrid"

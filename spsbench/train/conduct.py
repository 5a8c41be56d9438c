"""The conduct of a training: models, texts, the course, and what is left in its folder.

DIR/train.json      what was asked, and of which files
DIR/texts.jsonl     the target's texts
DIR/checkpoints/    the newest two
DIR/log.jsonl       a line a look
DIR/curve.png       the same, drawn
DIR/page.html       the same, to look at
DIR/result/         what --draft takes, and its card
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from spsbench.errors import CannotCreateError, DataError, MismatchError
from spsbench.loop.sampling import Warp
from spsbench.models.jsonfile import read_object
from spsbench.models.loader import load_model
from spsbench.models.source import source_of
from spsbench.reports.plots import png
from spsbench.settings.access import Access
from spsbench.settings.models import ModelSpec
from spsbench.settings.place import Place
from spsbench.settings.training import DraftTraining, HeadTraining, Training
from spsbench.spec import Spec
from spsbench.store.atomic import next_free, replace_file
from spsbench.store.lock import Lock
from spsbench.store.manifest import differences
from spsbench.store.provenance import digest, hash_files
from spsbench.train.course.batches import Batches, together
from spsbench.train.course.course import Course, Look, Rules
from spsbench.train.course.estimate import check_room, needed
from spsbench.train.course.outlook import Prices
from spsbench.train.course.precision import BFLOAT16, FLOAT32, quicker
from spsbench.train.course.teacher import Teacher
from spsbench.train.losses.table import ACCEPTANCES, loss_of
from spsbench.train.students.student import Student
from spsbench.train.students.table import made_student
from spsbench.train.text.asking import SELF, in_chat
from spsbench.train.text.overlap import Overlap
from spsbench.train.text.texts import Texts, check_target, read, read_head, written
from spsbench.train.text.writing import Text, Writer
from spsbench.train.written.card import card
from spsbench.train.written.curve import curve
from spsbench.train.written.page import page

MANIFEST, TEXTS, LOG, CURVE, PAGE, RESULT = (
    "train.json",
    "texts.jsonl",
    "log.jsonl",
    "curve.png",
    "page.html",
    "result",
)
CHECKPOINTS = "checkpoints"
PRODUCTS = "products"
LARGE = 1 << 20
FREE = ("patience", "worth", "costs", "cost_seconds", "texts", "save_as", "minutes")
"""May be another on resume: none of them changes what a step does."""

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

    def run(self) -> "Trained | None":
        """Train to the end; None: it was stopped, and is gone on with by --resume.

        Raises:
            SpsError: models, texts, settings or a folder that cannot be used.
        """
        asked, torch_threads = self.asked, self.access.threads
        if torch_threads is not None:
            torch.set_num_threads(torch_threads)
        loss = asked.loss or Spec.parse(_loss(asked))
        rule = loss_of(loss)
        source = source_of(
            self.target,
            seed=0,
            offline=self.access.offline,
            allow_pickle=self.access.allow_pickle,
            say=self.say,
        )
        found = source.locate(self.target)
        tokenizer = source.tokenizer(found)
        chat = in_chat(tokenizer, asked.chat)
        files = hash_files(found)
        folder = self._folder()
        identity = self._identity(digest(files), loss, folder)
        with Lock(folder / "lock"):
            self._begin(folder, identity)
            model = source.model(found)
            if identity[PRODUCTS] == BFLOAT16 and self.target.dtype == "auto":
                model = model.to(torch.bfloat16)
            vocab = source.vocab_size(model, model, tokenizer)
            eos = source.eos(model, tokenizer)
            teacher = Teacher(model, vocab)
            made = self._texts_of(files, vocab, chat, str(model.dtype).removeprefix("torch."))
            path = asked.texts or folder / TEXTS
            if asked.texts is not None:
                check_target(read_head(path), made, path)
                decoded = Overlap()
            else:
                writer = Writer(model, tokenizer, eos, vocab, asked, chat)
                if not written(path, made, writer, self.say, self.stop):
                    return None
                decoded = Overlap()
            texts = read(path, decoded, tokenizer.decode)
            learnt, kept = self._parted(texts)
            counts = torch.bincount(
                torch.tensor([t for text in learnt for part in text for t in part]), minlength=vocab
            )
            student = made_student(
                asked, teacher, tokenizer, self.target.id, counts, self._loader()
            )
            self._estimate(student, teacher, learnt, folder)
            numbers = identity[PRODUCTS]
            course = self._course(student, teacher, learnt, kept, folder, rule, loss, numbers)
            if not course.run():
                return None
            return self._finish(course, folder, texts, loss, chat)

    def _identity(self, files: str, loss: Spec, folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {"target": str(self.target), "files": files, "loss": str(loss)}
        found[PRODUCTS] = self._products(folder)
        for each in fields(self.asked):
            if each.name not in (*FREE, "loss"):
                value = getattr(self.asked, each.name)
                found[each.name] = str(value) if isinstance(value, Path) else value
        found |= {name: getattr(self.target, name) for name in ("device", "dtype", "attention")}
        if self.asked.steps is None:
            found["minutes"] = self.asked.minutes
        for name in ("torch", "transformers"):
            found[f"version.{name}"] = ".".join(version(name).split(".")[:2])
        return found

    def _products(self, folder: Path) -> str:
        """The numbers of products: those that it was begun with, else what is faster here."""
        if (folder / MANIFEST).is_file() and self.place.resume:
            begun = read_object(folder / MANIFEST, LARGE)
            return str(begun.get(PRODUCTS, FLOAT32))
        chosen = quicker(torch.device(self.target.device))
        self.say(f"products in {chosen}; weights and losses in float32")
        return chosen

    def _folder(self) -> Path:
        folder = Path(self.place.out or "trained")
        if folder.exists() and self.place.overwrite:
            folder.rename(next_free(folder, "old"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotCreateError(
                f"cannot make {folder} ({error.strerror}): expected a place for the training. Name "
                "another with --out"
            ) from error
        return folder

    def _begin(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Settle what is trained in this folder.

        Raises:
            MismatchError: something else is there, or --resume was not said.
        """
        path = folder / MANIFEST
        mine = json.loads(json.dumps(identity))
        if not path.exists():
            if others := [each.name for each in folder.iterdir() if each.name != "lock"]:
                raise MismatchError(
                    f"{folder} has {others[0]} in it: expected an empty folder. Name another with "
                    "--out"
                )
            replace_file(path, (json.dumps(mine, indent=1) + "\n").encode())
            return
        if not self.place.resume:
            raise MismatchError(
                f"a training is there ({folder}): expected a new folder. Go on with --resume, or "
                "start over with --overwrite"
            )
        if lines := differences(mine, read_object(path, LARGE)):
            raise MismatchError(
                f"another training ({folder}): expected the settings that it was begun with. Give "
                "this one another folder, or start over with --overwrite. Differing:"
                + "".join(f"\n  {line}" for line in lines)
            )

    def _texts_of(
        self, files: Mapping[str, str], vocab: int, chat: bool, numbers: str
    ) -> dict[str, Any]:
        asked = self.asked
        own = {name: value for name, value in files.items() if "token" in name or "vocab" in name}
        return {
            "target": str(self.target),
            "files": digest(dict(files)),
            "tokenizer": digest(own),
            "vocab": vocab,
            "chat": chat,
            "numbers": numbers,
            **{
                name: getattr(asked, name)
                for name in (
                    "prompts",
                    "count",
                    "together",
                    "tokens",
                    "prompt_tokens",
                    "temperature",
                    "top_p",
                    "seed",
                )
            },
        }

    def _parted(self, texts: Texts) -> tuple[list[Text], list[Text]]:
        """Those to learn from, and those to watch on: no text is in both.

        Raises:
            DataError: too few for both.
        """
        count = min(self.asked.held_out, len(texts.texts) // 4)
        if count < 1:
            raise DataError(
                f"{len(texts.texts)} texts: expected 4 or more, some of them to watch on. Give "
                "more --prompts, or a higher --count"
            )
        order = torch.randperm(
            len(texts.texts), generator=torch.Generator().manual_seed(self.asked.seed)
        ).tolist()
        held = sorted(order[:count])
        chosen = set(held)
        learnt = [text for i, text in enumerate(texts.texts) if i not in chosen]
        self.say(
            f"texts: {len(learnt)} to learn from, {count} held out, {texts.tokens} tokens written "
            "by the target"
        )
        return learnt, [texts.texts[i] for i in held]

    def _loader(self) -> Callable[[Path], Any]:
        def load(folder: Path) -> Any:
            return load_model(
                folder,
                device=self.target.device,
                dtype="float32",
                attention=None,
                trust_remote_code=False,
                allow_pickle=False,
            )

        return load

    def _estimate(
        self, student: Student, teacher: Teacher, texts: Sequence[Text], folder: Path
    ) -> None:
        config = teacher.parts.config
        rows = min(
            self.asked.micro_tokens + max(len(p) + len(t) for p, t in texts),
            2 * self.asked.micro_tokens,
        )
        need = needed(
            student.describe()["parameters"],
            rows,
            teacher.vocab,
            int(getattr(config, "hidden_size", None) or config.n_embd),
            int(getattr(config, "num_hidden_layers", None) or config.n_layer),
            student.depth,
        )
        self.say(f"{student.describe()['parameters']:,} parameters learn; it needs about {need}")
        check_room(need, folder, teacher.parts.device)

    def _course(
        self,
        student: Student,
        teacher: Teacher,
        learnt: Sequence[Text],
        kept: Sequence[Text],
        folder: Path,
        rule: Any,
        loss: Spec,
        numbers: str,
    ) -> Course:
        asked, device = self.asked, teacher.parts.device
        rules = Rules(
            loss=rule,
            warp=Warp(asked.temperature, 0, asked.top_p),
            warped=loss.name in ACCEPTANCES,
            rate=asked.rate or student.rate,
            steps=asked.steps,
            minutes=asked.minutes,
            micro_tokens=asked.micro_tokens,
            evaluations=asked.evaluations,
            patience=asked.patience,
            worth=asked.worth,
            products=numbers,
        )
        each = max(1, asked.micro_tokens // max(len(p) + len(t) for p, t in kept))
        held = [together(kept[i : i + each], device) for i in range(0, len(kept), each)]
        student.write(folder / RESULT, getattr(torch, asked.save_as))
        prices = self.price(folder / RESULT, student.drafter)
        return Course(
            student,
            teacher,
            Batches(learnt, asked.batch_tokens, asked.seed, device),
            held,
            rules,
            folder / CHECKPOINTS,
            prices,
            lambda course: self._told(course, folder),
            self.stop,
        )

    def _told(self, course: Course, folder: Path) -> None:
        lines = "".join(json.dumps(look.to_json()) + "\n" for look in course.looks)
        replace_file(folder / LOG, lines.encode())
        self.watch(course)

    def _finish(
        self, course: Course, folder: Path, texts: Texts, loss: Spec, chat: bool
    ) -> "Trained":
        asked = self.asked
        course.student.network.load_state_dict(course.best)
        out = folder / RESULT
        course.student.write(out, getattr(torch, asked.save_as))
        own = "which asked itself the questions" if chat else "from nothing"
        named = ", ".join(asked.prompts)
        how = f"asked the prompts of {named}" if named not in ("", SELF) else own
        facts = {
            "target": str(self.target),
            "what": f"A drafter of kind {course.student.drafter}",
            "temperature": asked.temperature,
            "top_p": f" and top-p {asked.top_p}" if asked.top_p < 1 else "",
            "count": len(texts.texts),
            "tokens": texts.tokens,
            "numbers": texts.made.get("numbers", "the numbers of its checkpoint"),
            "asked": how,
            "empty": texts.made["left_out"]["empty"],
            "shared": texts.made["left_out"]["of tasks"],
            "loss": loss,
            "batch_tokens": asked.batch_tokens,
            "seed": asked.seed,
            "command": shlex.join(self.command) or "spsbench.library.train",
        }
        replace_file(out / "README.md", card(course, facts).encode())
        figures = {**course.chosen.to_json(), **facts, "loss": str(loss)}
        replace_file(out / "training.json", (json.dumps(figures, indent=1) + "\n").encode())
        title = f"{course.student.drafter} for {self.target}"
        replace_file(folder / CURVE, png(curve(course.looks, title)))
        shown = page(course.looks, course.chosen, title, course.ended)
        replace_file(folder / PAGE, shown.encode())
        return Trained(
            out, course.student.drafter, course.chosen, tuple(course.looks), course.ended
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it."""

    folder: Path
    drafter: str
    best: Look
    looks: tuple[Look, ...]
    ended: str  # why before its time


def _loss(asked: Training) -> str:
    return (
        "kl" if isinstance(asked, HeadTraining) and asked.kind in ("eagle", "falcon") else "hybrid"
    )

"""What is left at the end of a training: the drafter, its card, the curve and the page."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spsbench.reports.plots import png
from spsbench.settings.commands import DraftTraining, HeadTraining
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.training.course.course import Course
from spsbench.training.course.look import Look
from spsbench.training.folder import Folder
from spsbench.training.text.asking import SELF
from spsbench.training.text.texts import Texts
from spsbench.training.written.card import card
from spsbench.training.written.curve import curve
from spsbench.training.written.page import page


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it."""

    folder: Path
    drafter: str
    best: Look
    looks: tuple[Look, ...]
    ended: str  # why before its time


def finish(
    course: Course,
    folder: Folder,
    texts: Texts,
    asked: DraftTraining | HeadTraining,
    target: ModelSpec,
    loss: Spec,
    chat: bool,
    command: Sequence[str],
) -> Trained:
    """Write the weights of the best look, and what is to be told of them.

    Raises:
        WriteError: no room.
    """
    student, out = course.student, folder.result
    student.network.load_state_dict(course.best)
    student.write(out, getattr(torch, asked.save_as))
    own = "which asked itself the questions" if chat else "from nothing"
    named = ", ".join(asked.prompts)
    how = f"asked the prompts of {named}" if named not in ("", SELF) else own
    facts = {
        "target": str(target),
        "what": f"A drafter of kind {student.drafter}",
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
        "on_policy": asked.on_policy,
        "seed": asked.seed,
        "command": shlex.join(command) or "spsbench.api.train",
    }
    replace_file(out / "README.md", card(course, facts).encode())
    figures = {**course.chosen.to_json(), **facts, "loss": str(loss)}
    replace_file(out / "training.json", (json.dumps(figures, indent=1) + "\n").encode())
    title = f"{student.drafter} for {target}"
    replace_file(folder.curve, png(curve(course.looks, title)))
    shown = page(course.looks, course.chosen, title, course.ended)
    replace_file(folder.page, shown.encode())
    return Trained(out, student.drafter, course.chosen, tuple(course.looks), course.ended)

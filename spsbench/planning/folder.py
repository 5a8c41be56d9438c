"""The folder of a plan: what was asked, so that it can be gone on with and drawn again."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MismatchError, MissingError
from spsbench.hardware.files import read_file
from spsbench.metrics.intervals import FEWEST
from spsbench.settings.cell import Cell
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.folder import check_writable, move_aside
from spsbench.store.manifest import differences
from spsbench.tasks.jsonl import Jsonl

NAME, COSTS = "plan.json", "costs.json"
KIND, VERSION = "spsbench plan", 1


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What `plan.json` says."""

    cells: Sequence[Cell]
    identity: Mapping[str, Any]  # what may not change when it is gone on with
    texts: Sequence[str]  # where its traces are, and its costs: in the folder, or elsewhere
    costs: str
    confirm: str | None = None  # the folder of the real rounds
    factors: Mapping[str, float] = field(default_factory=dict)  # of costs: what if
    home: str | None = None  # where it was begun, whatever it was moved to since: its cells say so
    lines: Mapping[str, int] = field(default_factory=dict)  # of each log when it was finished

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            WriteError: it could not be written.
        """
        values = {
            "kind": KIND,
            "version": VERSION,
            "identity": dict(self.identity),
            "cells": [cell.to_json() for cell in self.cells],
            "texts": list(self.texts),
            "costs": self.costs,
            "confirm": self.confirm,
            "factors": dict(self.factors),
            "home": self.home,
            "lines": dict(self.lines),
        }
        text = json.dumps(values, allow_nan=False, indent=1)
        replace_file(folder / NAME, text.encode("ascii") + b"\n")


def is_plan(folder: Path) -> bool:
    """Whether a plan was begun there."""
    return (folder / NAME).is_file()


def load(folder: Path) -> Kept:
    """Read it.

    Raises:
        MissingError: there is none. DataError: it cannot be read.
    """
    path = folder / NAME
    try:
        values = json.loads(read_file(path))
        if values["kind"] != KIND or values["version"] != VERSION:
            raise ValueError(f"{values['kind']} {values['version']}, not {KIND} {VERSION}")
        return Kept(
            cells=[Cell.from_json(each) for each in values["cells"]],
            identity=values["identity"],
            texts=values["texts"],
            costs=values["costs"],
            confirm=values["confirm"],
            factors=values["factors"],
            home=values.get("home"),
            lines=dict(values.get("lines", {})),
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(
            f"no plan ({folder}): expected {NAME} in it. Check the folder"
        ) from error
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise DataError(
            f"unreadable plan ({path}: {error}): expected what `sps plan` wrote. Plan anew"
        ) from error


def lines_of(folder: Path, runs: Iterable[str]) -> dict[str, int]:
    """Lines of each log of some runs in a plan, by their paths in it."""
    found = {}
    for run in runs:
        for path in sorted((folder / run).glob("*.jsonl")):
            with path.open("rb") as file:
                found[str(path.relative_to(folder))] = sum(1 for _ in file)
    return found


def lost(folder: Path, kept: Kept) -> str:
    """Which logs of a finished plan have fewer lines than it wrote; empty: none."""
    there = lines_of(folder, {str(Path(name).parent) for name in kept.lines})
    short = {name: there.get(name, 0) for name, n in kept.lines.items() if there.get(name, 0) < n}
    return ", ".join(f"{name} has {n} of {kept.lines[name]} lines" for name, n in short.items())


def check_whole(folder: Path) -> None:
    """Refuse a finished plan whose logs have lost their ends, which no line of them can tell.

    Raises:
        DataError: it has; says which.
    """
    if is_plan(folder) and (told := lost(folder, load(folder))):
        raise DataError(
            f"the end of a log is lost ({folder}: {told}): expected all that the plan wrote. Make "
            "it again: sps plan ... --resume"
        )


def opened(
    folder: Path, identity: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Kept | None:
    """Make the folder, or find what is there to go on with.

    Raises:
        MismatchError: another plan is there, or this one and nobody said to resume.
        CannotCreateError, PermissionDeniedError: it cannot be written.
    """
    check_writable(folder)
    if is_plan(folder) and overwrite:
        move_aside(folder)
    if not is_plan(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return None
    if not resume:
        raise MismatchError(
            f"a plan is there already ({folder}): expected an empty folder. Continue with "
            f"--resume, "
            "start over with --overwrite (the old one is kept), or name another"
        )
    kept = load(folder)
    if lines := differences(identity, kept.identity):
        raise MismatchError.of(
            f"another plan ({folder}): expected the one that was begun. Give this one another "
            "folder, or start over with --overwrite",
            lines,
        )
    return kept


# The prompts of a plan: some to trace, and others, held back, to measure on.

log = logging.getLogger(__name__)

PROMPTS, HELD_BACK = "prompts.jsonl", "held-back.jsonl"


class Prompts(NamedTuple):
    """What a plan generates from."""

    traced: list[Sample]
    held_back: list[Sample]


def prompts_of(
    spec: Spec,
    task: Task,
    fits: Fits,
    limit: int,
    held_back: int,
) -> Prompts:
    """The first prompts of a task to trace, the next ones to measure on.

    Where there are too few for both, half of them are held back, up to as many as an interval
    needs, or a third of them where that is more; a single one serves for both, and it is said.

    Raises:
        DataError: no prompts, or one that does not fit.
    """
    found = list(islice((s for s in task.samples(fits) if s.after is None), limit + held_back))
    if not found:
        raise DataError(f"no prompts ({spec}): expected one or more. Name another task")
    if len(found) == limit + held_back:
        return Prompts(found[:limit], found[limit:])
    if len(found) == 1:
        log.info(
            "note: one prompt alone: the best are measured on the prompt that they were chosen by"
        )
        return Prompts(found, found)
    back = min(held_back, max(min(len(found) // 2, FEWEST), len(found) // 3))
    log.info(
        f"note: {len(found)} prompts, not {limit + held_back}: {len(found) - back} are traced, "
        f"{back} held back"
    )
    return Prompts(found[: len(found) - back], found[len(found) - back :])


def kept(samples: Iterable[Sample], path: Path, home: Path) -> Jsonl:
    """Prompts as a file of the plan, and the task over it.

    Args:
        home: where the plan was begun. Runs are known by their titles, so that of a plan that was
            moved stays as it was.

    Raises:
        MismatchError: there are other prompts in the file.
        WriteError: it cannot be written.
    """
    rows = ({"id": s.id, "prompt": s.prompt, "group": s.group} for s in samples)
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii")
    if path.exists():
        if path.read_bytes() != text:
            raise MismatchError(
                f"other prompts ({path}): expected those that the plan was begun with. Give this "
                "one another folder, or start over with --overwrite"
            )
    else:
        replace_file(path, text)
    task = Jsonl(path=str(path))
    task.title = f"{home / path.name}{task.title.removeprefix(str(path))}"
    return task

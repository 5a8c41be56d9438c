"""The folder of a plan: one record of its inputs, its prompts, its costs, and what is missing."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MismatchError
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.metrics.intervals import FEWEST
from spsbench.settings.cell import Cell
from spsbench.settings.execution import OutputFolder
from spsbench.settings.method import Drafting
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import NAME as MANIFEST
from spsbench.store.manifest import differences
from spsbench.store.progress import Progress, progress_of
from spsbench.store.run_folder import check_writable, move_aside
from spsbench.tasks.drawing import groups_in_words, take_samples
from spsbench.tasks.jsonl import Jsonl
from spsbench.untrusted import read_json

log = logging.getLogger(__name__)

NAME, COSTS = "plan.json", "costs.json"
TEXTS = "texts"  # folder of a run, in that of the plan
PROMPTS, HELD_BACK = "prompts.jsonl", "held-back.jsonl"
KIND = {"kind": "spsbench plan", "version": 1}


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """The inputs of a plan, and how far it is: the contents of `plan.json`."""

    identity: Mapping[str, Any]  # must not change when the plan is resumed
    cells: Sequence[Cell] = ()
    texts: Sequence[str] = ()  # paths of the traces and of the costs, in the folder or elsewhere
    costs: str = COSTS
    confirm: str | None = None  # the folder of the real rounds
    factors: Mapping[str, float] = field(default_factory=dict)  # hypothetical factors of costs
    home: str = ""  # first folder of the plan; cells name it even after a move
    new_prompts: int | None = None  # prompts that the intervals hold for; None: as many
    finished: bool = False
    command: str = ""  # the command line that goes on with the plan

    @property
    def title(self) -> str:
        """Return the target and the task of the plan."""
        target, adapter = (self.identity.get(f"target.{name}") for name in ("id", "adapter"))
        name = f"{target} with {adapter}" if adapter else target
        return self.identity.get("title") or f"{name}, {self.identity['task']}"

    def save(self, folder: Path) -> None:
        """Write `plan.json` into `folder` atomically; WriteError: it cannot be written."""
        values = {**KIND, **vars(self), "cells": [cell.to_json() for cell in self.cells]}
        text = json.dumps(values, allow_nan=False, indent=1)
        replace_file(folder / NAME, text.encode("ascii") + b"\n")


def load_plan(folder: Path) -> PlanRecord:
    """Read `plan.json` of a folder; MissingError: none. DataError: damaged, or another version."""
    path = folder / NAME
    values = read_json(path, "a plan that `sps plan` wrote", strict=False)
    try:
        if (kind := {name: values.pop(name) for name in KIND}) != KIND:
            raise ValueError(f"{kind}, not {KIND}")
        cells = [Cell.from_json(cell) for cell in values.pop("cells")]
        return PlanRecord(cells=cells, **values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"unreadable plan ({path}: {error}): expected what `sps plan` wrote. Plan anew"
        ) from error


def runs_of(folder: Path, record: PlanRecord) -> dict[str, Progress]:
    """Return folder name -> progress of the runs that have begun: texts, then real rounds."""
    return {
        name: progress
        for name in (TEXTS, record.confirm)
        if name and (folder / name / MANIFEST).exists() and (progress := progress_of(folder / name))
    }


def incomplete(folder: Path, record: PlanRecord) -> str:
    """Say which texts or real rounds a stopped plan has, and how to go on; "" if it is finished."""
    if record.finished:
        return ""
    what = "texts" if record.confirm is None else "real rounds"
    progress = runs_of(folder, record).get(record.confirm or TEXTS)
    counts = "just begun" if progress is None else f"{progress} of the {what} are made"
    again = record.command or "the call that began it, with resume"
    return f"Incomplete: {counts}. Go on with: {again}"


def name_lost_runs(folder: Path, record: PlanRecord) -> str:
    """Name the runs of a finished plan that lack records, with their progress; "" if none does."""
    runs = runs_of(folder, record).items() if record.finished else ()
    return ", ".join(f"{name} has {progress}" for name, progress in runs if not progress.whole)


def check_plan_records(folder: Path) -> None:
    """Raise DataError if `folder` has a finished plan whose runs lack records."""
    if (folder / NAME).is_file() and (missing := name_lost_runs(folder, load_plan(folder))):
        raise DataError(
            f"the end of a log is lost ({folder}: {missing}): expected all that the plan wrote. "
            "Make it again: sps plan ... --resume"
        )


def begin_plan(folder: Path, identity: Mapping[str, Any], place: OutputFolder) -> PlanRecord:
    """Make a plan's folder with a new record, or resume the plan there and return its record.

    The record is not saved yet. With `overwrite` a plan that is there is moved aside. A note names
    runs that have lost records and are made again. MismatchError: a plan is there without `resume`
    or `overwrite`, or one of another `identity`. SpsError: not writable, or damaged.
    """
    check_writable(folder)
    exists = (folder / NAME).is_file()
    if exists and place.overwrite:
        move_aside(folder)
    if not exists or place.overwrite:
        folder.mkdir(parents=True, exist_ok=True)
        return PlanRecord(identity=identity, home=str(folder))
    if not place.resume:
        raise MismatchError(
            f"a plan is there already ({folder}): expected an empty folder. Continue with "
            "`resume`, start over with `overwrite` (the old one is kept), or name another"
        )
    record = load_plan(folder)
    if lines := differences(identity, record.identity):
        raise MismatchError.of(
            f"another plan ({folder}): expected the one that was begun. Give this one another "
            "folder, or start over with `overwrite`",
            lines,
        )
    if missing := name_lost_runs(folder, record):
        log.info(f"note: the end of a log is lost, and is made again: {missing}")
    return record


def draw_task_prompts(
    spec: Spec, task: Task, fits: Fits, limit: int, held_back: int, sample_seed: int = 0
) -> tuple[list[Sample], list[Sample]]:
    """Draw first turns of a task: (`limit` to trace, `held_back` others for real rounds).

    `spec` names the task in errors. With too few prompts for both, half are held back, up to
    `FEWEST`, or a third if more, and at most `held_back`; the rest, even over `limit`, are traced.
    One alone is in both, even if `held_back` is 0. Logs cases, groups. DataError: none, or unfit.
    """

    def first_turns(fits: Fits) -> Iterator[Sample]:
        return (sample for sample in task.samples(fits) if sample.after is None)

    samples = take_samples(first_turns, fits, limit + held_back, sample_seed)
    if not samples:
        raise DataError(f"no prompts ({spec}): expected one or more. Name another task")
    if len(samples) == 1:
        log.info(
            "note: one prompt alone: the best are measured on the prompt that they were chosen by"
        )
        return samples, samples
    back = held_back
    if len(samples) < limit + held_back:
        back = min(held_back, max(min(len(samples) // 2, FEWEST), len(samples) // 3))
        log.info(
            f"note: {len(samples)} prompts, not {limit + held_back}: {len(samples) - back} are "
            f"traced, {back} held back"
        )
    traced, others = samples[: len(samples) - back], samples[len(samples) - back :]
    if words := groups_in_words(traced):
        log.info(f"traced: {words}; held back: {groups_in_words(others) or 'none'}")
    return traced, others


def write_prompts(samples: Iterable[Sample], path: Path, home: Path) -> Jsonl:
    """Write prompts to the file `path`, unless it has them, and return the task that reads it.

    The task's title names the file in `home`, where the plan was begun: titles identify runs, so
    that a plan may be moved. MismatchError: the file has other prompts. WriteError: it failed.
    """
    rows = ({"id": s.id, "prompt": s.prompt, "group": s.group} for s in samples)
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii")
    if path.exists():
        if path.read_bytes() != text:
            raise MismatchError(
                f"other prompts ({path}): expected those that the plan was begun with. Give this "
                "one another folder, or start over with `overwrite`"
            )
    else:
        replace_file(path, text)
    task = Jsonl(path=str(path))
    task.title = f"{home / path.name}{task.title.removeprefix(str(path))}"
    return task


def costs_of_plan(
    path: Path, setting: Mapping[str, Any], drafts: Iterable[Drafting], measure: Callable[[], Costs]
) -> Costs:
    """Return the costs in the file `path`, after `measure` has made them anew if they do not fit.

    They fit if they are of this `setting` (machine and models) and have all `drafts`; else a note
    says what differs. New costs are written; where they contradict each other they are measured
    again: those with fewer contradictions count. DataError: a damaged file. WriteError: no room.
    """
    if path.exists():
        costs = read_costs(path)
        changed = [name for name in setting if setting[name] != costs.setting.get(name)]
        changed += sorted(str(draft) for draft in drafts if draft not in costs.arms)
        if not changed:
            return costs
        log.info(f"note: costs are measured again, of another setting ({', '.join(changed)})")
    costs = measure()
    if contradictions := costs.contradictions():
        log.info(
            f"note: the costs contradict each other, and are measured again: {contradictions[0]}"
        )
        costs = min(measure(), costs, key=lambda costs: len(costs.contradictions()))
    replace_file(path, dumps(costs).encode("ascii"))
    return read_costs(path)

"""The prompts of a plan: some to trace, and others, held back, to measure on."""

import json
import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spsbench.errors import DataError, MismatchError
from spsbench.metrics.intervals import FEWEST
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.tasks.jsonl import Jsonl

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

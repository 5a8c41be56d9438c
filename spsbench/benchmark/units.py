"""Units of a run's work: generations that are made together, in one process.

Here a unit is a part. On a worker it is what is generated of one prompt and repeat under all cells
of one target: the cells are compared with each other, so they meet the same moment of the same
machine. The turns of a conversation are one unit there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from spsbench.benchmark.jobs import Job
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.run_folder import TURN


class Unit(NamedTuple):
    """Generations that are made in one process, one after the other."""

    jobs: Sequence[Job]
    turns: Sequence[Sample] = ()  # of its conversations: all of them
    answers: Iterable[Record] = ()  # existing ones of them; on a worker, their texts alone


def units_of(
    missing: Sequence[Job], samples: Sequence[Sample], records: Iterable[Record]
) -> Iterator[Unit]:
    """Yield the units of missing jobs of a part, those of one target after the other.

    Args:
        samples: of the part.
        records: existing ones, whose answers later turns go on from.
    """
    conversations: dict[str, list[Sample]] = {}
    for sample in samples:
        conversations.setdefault(sample.id.partition(TURN)[0], []).append(sample)
    awaited = {sample.after for sample in samples if sample.after is not None}
    answers = [
        replace(record, tokens=[], rounds=[], laws=None)
        for record in (records if awaited else ())
        if record.sample in awaited and record.error is None
    ]
    targets = list(dict.fromkeys(job.cell.target for job in missing))
    by_unit: dict[tuple[int, str, int], list[Job]] = {}
    for job in missing:
        name = job.sample.id.partition(TURN)[0]
        by_unit.setdefault((targets.index(job.cell.target), name, job.repeat), []).append(job)
    for (_, name, repeat), of_unit in sorted(by_unit.items(), key=lambda item: item[0][0]):
        turns = tuple(conversations[name])
        ids = {turn.id for turn in turns} if len(turns) > 1 else set[str]()
        earlier = tuple(a for a in answers if a.repeat == repeat and a.sample in ids)
        yield Unit(tuple(of_unit), turns if ids else (), earlier)


def groups(missing: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs that are made together: one at a time, or those that share a batch.

    The methods of one batch of prompts still follow each other. A continuous batch has all jobs of
    its cell, and a later turn of a conversation waits for the batch of the turn before.
    """
    if all(job.cell.batch == 1 for job in missing):
        yield from ([job] for job in missing)
        return
    rows = max(job.cell.batch for job in missing)
    prompts = list(dict.fromkeys((job.sample.id, job.repeat) for job in missing))
    place = {prompt: number // rows for number, prompt in enumerate(prompts)}
    depth: dict[str, int] = {}
    batches: dict[tuple[int, int, str], list[Job]] = {}
    for job in missing:
        sample, work = job.sample, job.cell
        turn = depth[sample.id] = 0 if sample.after is None else depth.get(sample.after, -1) + 1
        chunk = 0 if work.continuous else place[sample.id, job.repeat]
        batches.setdefault((turn, chunk, job.cell.id), []).append(job)
    for _, group in sorted(batches.items(), key=lambda item: item[0][:2]):
        size = len(group) if group[0].cell.continuous else group[0].cell.batch
        yield from (group[start : start + size] for start in range(0, len(group), size))

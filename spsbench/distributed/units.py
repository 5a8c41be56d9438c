"""The generations of a run as units: all arms of one prompt and repeat, for one worker."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from spsbench.benchmark.jobs import Job, jobs, key
from spsbench.distributed.scheduler import Group
from spsbench.settings.experiment import Part
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample
from spsbench.store.folder import TURN


class Ask(NamedTuple):
    """One generation to be made."""

    cell: str
    sample: Sample
    repeat: int

    @property
    def key(self) -> Key:
        """That of its record."""
        return self.cell, self.sample.id, self.repeat


class Unit(NamedTuple):
    """What is made on one worker, one after the other."""

    asks: tuple[Ask, ...]
    turns: tuple[Sample, ...] = ()  # of a conversation: all of it
    said: tuple[Record, ...] = ()  # answers in it that there are already; their texts alone


Wants = Callable[[Key], bool]


def groups_of(
    part: Part, samples: Sequence[Sample], seed: int, wants: Wants, made: Mapping[Key, Record]
) -> Iterator[Group]:
    """The units of a part that miss something: a group for each target, made one at a time.

    The cells of one target are compared with each other, so they never part; those of another need
    other weights.
    """
    for target in dict.fromkeys(cell.models.target for cell in part.cells):
        given = part, samples, seed, wants, made, target
        yield Group(sum(1 for _ in _units(*given)), _units(*given))


def _units(
    part: Part,
    samples: Sequence[Sample],
    seed: int,
    wants: Wants,
    made: Mapping[Key, Record],
    target: ModelSpec,
) -> Iterator[Unit]:
    for _, together in groupby(samples, lambda sample: sample.id.partition(TURN)[0]):
        turns = tuple(together)
        for _, own in groupby(_by_repeat(part, turns, seed), lambda job: job.repeat):
            every = [job for job in own if job.cell.models.target == target]
            asks = tuple(
                Ask(job.cell.id, job.sample, job.repeat) for job in every if wants(key(job))
            )
            if asks and len(turns) > 1:
                said = tuple(made[key(job)] for job in every if key(job) in made)
                yield Unit(asks, turns, said)
            elif asks:
                yield Unit(asks)


def _by_repeat(part: Part, turns: Sequence[Sample], seed: int) -> Iterable[Job]:
    """The jobs of a conversation: its turns in order, for one repeat after the other."""
    found = jobs(part, turns, seed)
    return found if len(turns) == 1 else sorted(found, key=lambda job: job.repeat)


def answers(samples: Iterable[Sample], records: Iterable[Record]) -> dict[Key, Record]:
    """The answers that later turns go on from, without what was measured."""
    awaited = {sample.after for sample in samples if sample.after is not None}
    return {
        record.key: replace(record, tokens=[], rounds=[], laws=None)
        for record in (records if awaited else ())
        if record.sample in awaited and record.error is None
    }

"""Cells x samples -> records: every arm of a prompt in one process, in random order."""

import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

from spsbench.benchmark.generation import Generation
from spsbench.benchmark.target_laws import distance
from spsbench.errors import SpsError
from spsbench.hardware.contention import loaded, read_clocks
from spsbench.loop.decode import NonFiniteError
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.cell import Cell, Work
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample

# What a model is given of a sample: its text, or a conversation up to the model's turn.


class UnansweredError(SpsError):
    """The turn before has no answer: this one cannot be asked."""


def prompt_ids(
    tokenizer: Any, work: Work, prompt: str, before: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """The tokens of a prompt; under `work.chat` in the model's template, after its system message.

    Raises:
        DataError: as `encode` and `encode_chat`.
    """
    if not work.chat:
        return encode(tokenizer, prompt)
    start = [{"role": "system", "content": work.system}] if work.system else []
    return encode_chat(tokenizer, [*start, *before, {"role": "user", "content": prompt}])


class Answers:
    """What was answered so far, for the turns that come after.

    Args:
        samples: of a part.
        records: those there are already.
    """

    def __init__(self, samples: Iterable[Sample], records: Iterable[Record] = ()) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._awaited = {s.after for s in self._samples.values() if s.after is not None}
        self._texts: dict[Key, str] = {}
        for record in records if self._awaited else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Keep an answer that a later turn will need."""
        if record.sample in self._awaited and record.error is None:
            self._texts[record.key] = record.text

    def before(self, cell: str, sample: Sample, repeat: int) -> list[dict[str, str]]:
        """The turns before a sample's own, each with its answer.

        Raises:
            UnansweredError: one of them failed.
        """
        turns: list[dict[str, str]] = []
        while sample.after is not None:
            sample = self._samples[sample.after]
            if (cell, sample.id, repeat) not in self._texts:
                raise UnansweredError(f"no answer to {sample.id}: expected one to go on from")
            said = self._texts[cell, sample.id, repeat]
            turns[:0] = [
                {"role": "user", "content": sample.prompt},
                {"role": "assistant", "content": said},
            ]
        return turns


FAILURES = (
    NonFiniteError,
    RuntimeError,
    MemoryError,
    UnansweredError,
)  # of one sample; anything else ends the run


class Writer(Protocol):
    """Where records go: a run folder, or a list in a test."""

    def wants(self, key: Key) -> bool:
        """Whether this record is still missing, and of this shard."""

    def append(self, record: Record) -> None:
        """Make it durable."""


class Room(Protocol):
    """What a prompt must fit: `model_cache.Loaded`, or its outline."""

    @property
    def tokenizer(self) -> Any:
        """The target's."""

    @property
    def limit(self) -> int | None:
        """The shortest context, in tokens; None = unlimited."""


class Job(NamedTuple):
    """One generation to be made."""

    cell: Cell
    sample: Sample
    repeat: int


def jobs(part: Part, samples: Sequence[Sample], seed: int) -> Iterator[Job]:
    """All generations of a part: samples in order, the arms of each in an order of its own.

    Arms of one prompt follow each other, so that a drifting machine slows all of them alike; the
    order is drawn anew for each prompt, so that none always comes first. Greedy arms give the same
    text each time and are not repeated for more samples, only for more timings.
    """
    for sample in samples:
        for repeat in range(part.samples * part.repeats):
            arms = [c for c in part.cells if c.sampling.temperature > 0 or repeat < part.repeats]
            random.Random(f"{seed}/{sample.id}/{repeat}").shuffle(arms)
            yield from (Job(cell, sample, repeat) for cell in arms)


def generations(part: Part, prompts: int) -> dict[str, int]:
    """Cell -> how many jobs there are of it, without making them."""
    return {
        cell.id: prompts * part.repeats * (part.samples if cell.sampling.temperature > 0 else 1)
        for cell in part.cells
    }


def samples_of(part: Part, models: Callable[[Cell], Room]) -> list[Sample]:
    """The samples of a part, cut to fit the shortest context of all its cells."""
    return list(islice(part.task.samples(fitting(part, models)), part.limit))


def uncut(part: Part) -> list[Sample]:
    """The same samples as the data has them: no model is needed."""
    return list(islice(part.task.samples(lambda prompt: True), part.limit))


def run_part(
    part: Part,
    samples: Sequence[Sample],
    models: Callable[[Cell], Loaded],
    writer: Writer,
    *,
    experiment: Experiment,
    made: Iterable[Record] = (),
    told: Callable[[Job, Record], None] = lambda job, record: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Make and write every record of `part` that is missing; ends early when `stop()` says so.

    What first calls cost is no measurement: a cell is warmed up when its turn comes, so that a
    start that is soon killed has made records. Without warm-up the first record after each start is
    flagged. Later turns of a conversation need the answers among the records that were `made`
    before.
    """
    answers = Answers(samples, made)
    missing = [job for job in jobs(part, samples, experiment.seed) if writer.wants(key(job))]
    cold: dict[str, list[Job]] = {}
    for job in first_of_each(missing, experiment.warmup):
        cold.setdefault(job.cell.id, []).append(job)
    for number, job in enumerate(missing):
        for warming in cold.pop(job.cell.id, ()):
            if stop():
                return
            make(warming, models(warming.cell), first=True, answers=answers)
        if stop():
            return
        first = number == 0 and not experiment.warmup
        record = make(job, models(job.cell), first=first, answers=answers, compare=models)
        answers.add(record)
        writer.append(record)
        told(job, record)


def key(job: Job) -> Key:
    """The key of the job's record."""
    return job.cell.id, job.sample.id, job.repeat


def fitting(part: Part, models: Callable[[Cell], Room]) -> Callable[[str], bool]:
    """Whether a prompt and its new tokens fit the shortest context of all cells of a part."""
    loads = [(models(cell), cell.sampling.max_new_tokens) for cell in part.cells]
    limits = [load.limit - new for load, new in loads if load.limit is not None]
    tokenizer, work = loads[0][0].tokenizer, part.cells[0].work
    room = min(limits, default=None)
    return lambda prompt: room is None or len(prompt_ids(tokenizer, work, prompt)) <= room


def first_of_each(missing: Sequence[Job], prompts: int) -> Iterator[Job]:
    """The first jobs of each cell, to be run unrecorded: a first call costs more."""
    seen: dict[str, int] = {}
    for job in missing:
        seen[job.cell.id] = seen.get(job.cell.id, 0) + 1
        if seen[job.cell.id] <= prompts:
            yield job


def make(
    job: Job,
    models: Loaded,
    *,
    first: bool,
    answers: Answers | None = None,
    compare: Callable[[Cell], Loaded] | None = None,
) -> Record:
    """Run one generation; a failure of its own becomes a record with `error`.

    Args:
        compare: gives the models by which a quantised target is compared with its full self; None:
            that is left out.
    """
    cell, sample, repeat = job
    before = read_clocks()
    made, error = EMPTY, None
    try:
        said = answers.before(cell.id, sample, repeat) if answers is not None else []
        prompt = prompt_ids(models.tokenizer, cell.work, sample.prompt, said)
        if said and models.limit is not None:
            check_room(len(prompt) + cell.sampling.max_new_tokens, models.limit)
        generation = Generation(cell, models, prompt, sample.id, repeat)
        for _ in generation:
            pass
        made = generation.record
    except FAILURES as failure:
        error = f"{type(failure).__name__}: {failure}"
    disturbed = loaded(before, read_clocks())
    far = None
    if compare is not None and error is None:
        far = distance(cell, prompt, made.tokens, compare)
    return replace(
        made,
        distance=far,
        peak_memory_mib=peak_memory_mib() if error is None else None,
        cell=cell.id,
        sample=sample.id,
        repeat=repeat,
        error=error,
        prompt_cut=sample.cut,
        group=sample.group,
        flags=("first",) * first + ("loaded",) * disturbed,
    )


def check_room(wanted: int, limit: int) -> None:
    """Refuse a conversation that has become longer than the context.

    Raises:
        UnansweredError: it has.
    """
    if wanted > limit:
        raise UnansweredError(f"the conversation needs {wanted} tokens: the context holds {limit}")


def peak_memory_mib() -> float:
    """Return the most resident memory that this process has had, without that of a GPU."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


EMPTY = Record(prompt_tokens=0, tokens=[], text="", finish="", prefill_seconds=0.0, rounds=[])

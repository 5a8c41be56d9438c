"""Jobs of a run, cells x samples: every arm of a prompt in one process, in random order."""

import json
import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from spsbench.benchmark.generation import WARM_UP_TOKENS, Generation, check_cache
from spsbench.benchmark.target_laws import distance
from spsbench.errors import SpsError
from spsbench.hardware.contention import loaded, read_clocks
from spsbench.loop.batch import Batch
from spsbench.loop.decode import NonFiniteError
from spsbench.loop.decoder import Prompt, RefusedPromptError
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.cell import Cell, Work
from spsbench.settings.experiment import Experiment, Part, repeats_of
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample
from spsbench.store.records import impossible
from spsbench.tasks.drawing import take_samples
from spsbench.tasks.reader import digest_of

DIGESTED = 100  # prompts of a part, or up to twice as many: rendering each takes milliseconds


class UnansweredError(SpsError):
    """A missing answer in the turn before, without which the sample has no prompt."""


def prompt_of(
    loaded: Loaded, work: Work, prompt: str, before: Sequence[Mapping[str, str]] = ()
) -> list[int] | Prompt:
    """Return a prompt as the decoder takes it: tokens, or text and messages for another engine.

    Raises:
        DataError: as `encode` and `encode_chat`.
    """
    if loaded.target is not None:
        return prompt_ids(loaded, work, prompt, before)
    ids = loaded.tokenizer and prompt_ids(loaded, work, prompt, before)
    return Prompt(messages_of(work, prompt, before) if work.chat else prompt, ids)


def prompt_ids(
    models: "Room", work: Work, prompt: str, before: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """Return the tokens of a prompt; under `work.chat` in the template, after a system message.

    Raises:
        DataError: as `encode` and `encode_chat`.
    """
    if not work.chat:
        return encode(models.tokenizer, prompt)
    return encode_chat(models.tokenizer, messages_of(work, prompt, before), clock=models.clock)


def digest_of_ids(models: "Room", work: Work, samples: Sequence[Sample]) -> str:
    """Return a digest of the tokens of some prompts, evenly spread; later turns are left out."""
    prompts = [sample.prompt for sample in samples if sample.after is None]
    chosen = prompts[:: max(1, len(prompts) // DIGESTED)]
    return digest_of(json.dumps(prompt_ids(models, work, prompt)) for prompt in chosen)[:16]


def messages_of(
    work: Work, prompt: str, before: Sequence[Mapping[str, str]] = ()
) -> list[Mapping[str, str]]:
    """Return a prompt as messages, after the system message and the turns before it."""
    start = [{"role": "system", "content": work.system}] if work.system else []
    return [*start, *before, {"role": "user", "content": prompt}]


class Answers:
    """Answers of earlier turns, for the prompts of later turns.

    Args:
        samples: of a part.
        records: existing records.
    """

    def __init__(self, samples: Iterable[Sample], records: Iterable[Record] = ()) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._awaited = {s.after for s in self._samples.values() if s.after is not None}
        self._texts: dict[Key, str] = {}
        for record in records if self._awaited else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Keep an answer that a later turn needs."""
        if record.sample in self._awaited and record.error is None:
            self._texts[record.key] = record.text

    def before(self, cell: str, sample: Sample, repeat: int) -> list[dict[str, str]]:
        """Return the turns before a sample's own, each with its answer.

        Raises:
            UnansweredError: an earlier turn failed.
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
    RefusedPromptError,
)  # errors of one sample; other errors end the run


class Writer(Protocol):
    """The destination of records: a run folder, or a list in a test."""

    def wants(self, key: Key) -> bool:
        """Return whether this record is missing and belongs to this shard."""

    def append(self, record: Record) -> None:
        """Write the record and wait until it is on disk."""


class Room(Protocol):
    """The models that the tokens of a prompt depend on: `cache.Loaded`, or its outline."""

    @property
    def tokenizer(self) -> Any:
        """Return the target's tokenizer."""

    @property
    def limit(self) -> int | None:
        """Return the shortest context, in tokens; None = unlimited."""

    @property
    def clock(self) -> datetime | None:
        """Return the time that a chat template is told; None = now."""


class Job(NamedTuple):
    """One generation to be made."""

    cell: Cell
    sample: Sample
    repeat: int


def jobs(part: Part, samples: Sequence[Sample], seed: int) -> Iterator[Job]:
    """Yield all generations of a part: samples in order, the arms of each sample in random order.

    Arms of one prompt run one after another, so that a drifting machine slows all of them alike;
    the order is drawn again for each prompt, so that no arm always comes first. Greedy arms give
    the same text each time: they run for repeats, which add timings, and not for samples.
    """
    for sample in samples:
        for repeat in range(part.samples * part.repeats):
            arms = [c for c in part.cells if repeat < repeats_of(c, part.samples, part.repeats)]
            random.Random(f"{seed}/{sample.id}/{repeat}").shuffle(arms)
            yield from (Job(cell, sample, repeat) for cell in arms)


def generations(part: Part, prompts: int) -> dict[str, int]:
    """Return cell -> number of jobs, without creating them."""
    return {cell.id: prompts * repeats_of(cell, part.samples, part.repeats) for cell in part.cells}


def samples_of(part: Part, models: Callable[[Cell], Room]) -> list[Sample]:
    """Return the samples of a part, cut to fit the shortest context of all its cells."""
    return take_samples(part.task.samples, fitting(part, models), part.limit, part.sample_seed)


def uncut(part: Part) -> list[Sample]:
    """Return the samples of a part as in the data, without models."""
    return take_samples(part.task.samples, lambda prompt: True, part.limit, part.sample_seed)


def run_part(
    part: Part,
    samples: Sequence[Sample],
    models: Callable[[Cell], Loaded],
    writer: Writer,
    *,
    experiment: Experiment,
    made: Iterable[Record] = (),
    notify: Callable[[Job, Record], None] = lambda job, record: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Make and write every missing record of `part`; ends early when `stop()` returns True.

    First calls are slow, so each cell is warmed up at its first job, which lets a start that is
    soon killed make records. Without warm-up the first record after each start is flagged. Later
    turns of a conversation need the answers among the records in `made`.
    """
    answers = Answers(samples, made)
    missing = [job for job in jobs(part, samples, experiment.seed) if writer.wants(key(job))]
    cold: dict[str, list[Job]] = {}
    for job in first_of_each(missing, experiment.warmup):
        cold.setdefault(job.cell.id, []).append(job)
    begun = False
    for cell in {job.cell.id: job.cell for job in missing if job.cell.work.batch > 1}.values():
        check_batch([job for job in missing if job.cell.id == cell.id], models(cell))
    for group in groups(missing):
        cell = group[0].cell
        for warming in cold.pop(cell.id, ()):
            if stop():
                return
            ready = models(cell)
            make(warming, ready, first=True, answers=answers)
            warm_batch(group, ready, answers)
        for job, record in made_in_turn(group, models, answers, stop):
            if not begun and not experiment.warmup:
                record = replace(record, flags=("first", *record.flags))
            begun = True
            answers.add(record)
            writer.append(record)
            notify(job, record)
        if stop():
            return


def groups(missing: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs that are made together: one at a time, or those that share a batch.

    The arms of the prompts of one batch still follow each other. A continuous batch has all jobs of
    its cell, and a later turn of a conversation waits for the batch of the turn before.
    """
    if all(job.cell.work.batch == 1 for job in missing):
        yield from ([job] for job in missing)
        return
    rows = max(job.cell.work.batch for job in missing)
    prompts = list(dict.fromkeys((job.sample.id, job.repeat) for job in missing))
    place = {prompt: number // rows for number, prompt in enumerate(prompts)}
    depth: dict[str, int] = {}
    found: dict[Any, list[Job]] = {}
    for job in missing:
        sample, work = job.sample, job.cell.work
        turn = depth[sample.id] = 0 if sample.after is None else depth.get(sample.after, -1) + 1
        chunk = 0 if work.continuous else place[sample.id, job.repeat]
        found.setdefault((turn, chunk, job.cell.id), []).append(job)
    for _, group in sorted(found.items(), key=lambda item: item[0][:2]):
        size = len(group) if group[0].cell.work.continuous else group[0].cell.work.batch
        yield from (group[start : start + size] for start in range(0, len(group), size))


def made_in_turn(
    group: Sequence[Job],
    models: Callable[[Cell], Loaded],
    answers: Answers,
    stop: Callable[[], bool],
) -> Iterator[tuple[Job, Record]]:
    """Make the records of a group, each as it ends; after a `stop()` no other is begun."""
    cell, work = group[0].cell, group[0].cell.work
    one = partial(make, models=models(cell), first=False, answers=answers, compare=models)
    if work.batch == 1:
        yield from ((job, one(job)) for job in group if not stop())
        return
    batch = Batch(work.batch, continuous=work.continuous)
    calls = (partial(one, job, batch=batch) for job in group)
    for row in batch.run(takewhile(lambda call: not stop(), calls)):
        rounds = [r._replace(processor_seconds=None) for r in row.made.rounds]  # of all rows
        yield (
            group[row.number],
            replace(
                row.made,
                rounds=rounds,
                machine_seconds=row.share,
                empty_seconds=max(0.0, row.share - row.seconds / work.batch),
            ),
        )


def check_batch(group: Sequence[Job], models: Loaded) -> None:
    """Refuse a batch whose keys and values do not fit into memory, before it is begun.

    Raises:
        OutOfMemoryError: names the bytes of the batch, and how many rows fit.
    """
    cell = group[0].cell
    lengths = [len(prompt_ids(models, cell.work, job.sample.prompt)) for job in group]
    check_cache(cell, models, lengths, cell.work.batch)


def warm_batch(group: Sequence[Job], models: Loaded, answers: Answers) -> None:
    """Make a few tokens of a batch, so that first calls enter no figure."""
    work = group[0].cell.work
    if work.batch == 1:
        return
    batch = Batch(work.batch)
    few = [job._replace(cell=job.cell.but(max_new_tokens=WARM_UP_TOKENS)) for job in group]
    for _ in batch.run(
        partial(make, job, models, first=True, batch=batch) for job in few[: work.batch]
    ):
        pass


def key(job: Job) -> Key:
    """Return the key of the job's record."""
    return job.cell.id, job.sample.id, job.repeat


def fitting(part: Part, models: Callable[[Cell], Room]) -> Callable[[str], bool]:
    """Return a test of whether a prompt and its new tokens fit the shortest context of a part."""
    loads = [(models(cell), cell.sampling.max_new_tokens) for cell in part.cells]
    limits = [load.limit - new for load, new in loads if load.limit is not None]
    first, work = loads[0][0], part.cells[0].work
    room = min(limits, default=None)
    return lambda prompt: room is None or len(prompt_ids(first, work, prompt)) <= room


def first_of_each(missing: Sequence[Job], prompts: int) -> Iterator[Job]:
    """Yield the first jobs of each cell, for a warm-up without records."""
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
    batch: Batch | None = None,
) -> Record:
    """Run one generation; a failure becomes a record with `error`.

    Args:
            batch: of which it is a row; None: it is alone.
            compare: returns the models for the comparison of a quantised target with the
            full-precision target; None: no comparison.
    """
    cell, sample, repeat = job
    elsewhere = cell.method.elsewhere  # then this process is not the engine
    before = read_clocks()
    made, error = EMPTY, None
    try:
        said = answers.before(cell.id, sample, repeat) if answers is not None else []
        prompt = prompt_of(models, cell.work, sample.prompt, said)
        if said and models.limit is not None:
            check_room(len(prompt) + cell.sampling.max_new_tokens, models.limit)
        generation = Generation(cell, models, prompt, sample.id, repeat, batch)
        for _ in generation:
            pass
        made = generation.record
        if wrong := impossible(made):
            made, error = EMPTY, f"impossible record: {wrong}"
    except FAILURES as failure:
        error = f"{type(failure).__name__}: {failure}"
    disturbed = loaded(before, read_clocks())
    far = None
    if compare is not None and error is None and not isinstance(prompt, Prompt):
        far = distance(cell, prompt, made.tokens, compare)
    return replace(
        made,
        distance=far,
        peak_memory_mib=peak_memory_mib() if error is None and not elsewhere else None,
        cell=cell.id,
        sample=sample.id,
        repeat=repeat,
        error=error,
        prompt_cut=sample.cut,
        group=sample.group,
        flags=("first",) * first + ("loaded",) * disturbed,
    )


def check_room(wanted: int, limit: int) -> None:
    """Refuse a conversation longer than the context.

    Raises:
        UnansweredError: the conversation is longer.
    """
    if wanted > limit:
        raise UnansweredError(f"the conversation needs {wanted} tokens: the context holds {limit}")


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process, without GPU memory."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


EMPTY = Record(prompt_tokens=0, tokens=[], text="", finish="", prefill_seconds=0.0, rounds=[])

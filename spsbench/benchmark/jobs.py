"""Jobs of a run, cells x samples, and the units of them that are made in one process.

Here a unit is a part. On a worker it is what is generated of one prompt and repeat under all cells
of one target, in random order: the cells are compared with each other, so they meet the same moment
of the same machine. The turns of a conversation are one unit there.
"""

import json
import random
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from spsbench.benchmark.target_probs import distance
from spsbench.errors import SpsError
from spsbench.generation import Generation
from spsbench.hardware.contention import read_clocks, was_disturbed
from spsbench.loop.batch import Batch
from spsbench.loop.constraint import DeadEndError
from spsbench.loop.decode import NonFiniteError
from spsbench.loop.decoder import EnginePrompt, RefusedPromptError
from spsbench.metrics.sums import group_by
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode_chat, encode_text
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import TaskPart, repeats_of
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Fits, Sample
from spsbench.store.run_folder import TURN
from spsbench.tasks.drawing import take_samples
from spsbench.tasks.reader import digest_of

Room = Any
"""`cache.Loaded` or its outline: the tokenizer, limit and clock that prompts depend on."""
Rooms = Callable[[Cell], Room]
"""A cell -> its loaded models, or their outline."""

DIGESTED = 100  # prompts of a part, or up to twice as many: rendering each takes milliseconds


class UnansweredError(SpsError):
    """A missing answer in the turn before, without which the sample has no prompt."""


def job_prompt(
    models: Room, cell: Cell, sample: Sample, before: Sequence[Mapping[str, str]] = ()
) -> list[int] | EnginePrompt:
    """Return a sample's prompt as tokens; for an engine elsewhere its text or messages with them.

    Without a tokenizer here, the tokens of an `EnginePrompt` are None. `before` are the turns
    before the sample's. Raises DataError as `encode_text` and `encode_chat`.
    """
    if not cell.elsewhere:
        return prompt_ids(models, cell, sample, before)
    ids = models.tokenizer and prompt_ids(models, cell, sample, before)
    return EnginePrompt(job_messages(cell, sample, before) if cell.chat else sample.prompt, ids)


def prompt_ids(
    models: Room, cell: Cell, sample: Sample, before: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """Return the tokens of a sample's prompt; under `cell.chat` in the template, as messages.

    `before` are its earlier turns, for `chat` alone. DataError: as `encode_text`, `encode_chat`.
    """
    if not cell.chat:
        return encode_text(models.tokenizer, sample.prompt)
    return encode_chat(models.tokenizer, job_messages(cell, sample, before), clock=models.clock)


def digest_of_ids(models: Room, cell: Cell, samples: Sequence[Sample]) -> str:
    """Return 16 digits of a digest of the tokens of about `DIGESTED` first turns, evenly spread."""
    first = [sample for sample in samples if sample.after is None]
    chosen = first[:: max(1, len(first) // DIGESTED)]
    return digest_of(json.dumps(prompt_ids(models, cell, sample)) for sample in chosen)[:16]


def job_messages(
    cell: Cell, sample: Sample, before: Sequence[Mapping[str, str]] = ()
) -> list[Mapping[str, str]]:
    """Return a sample's prompt as the user's message, behind a system message and `before`.

    The system message is the sample's, else the cell's; without either there is none.
    """
    system = sample.system or cell.system
    start = [{"role": "system", "content": system}] if system else []
    return [*start, *before, {"role": "user", "content": sample.prompt}]


class Answers:
    """Answers to samples of a part, of `records` and of later ones, for prompts of later turns."""

    def __init__(self, samples: Iterable[Sample], records: Iterable[Record] = ()) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._awaited = {s.after for s in self._samples.values() if s.after is not None}
        self._texts: dict[Key, str] = {}
        for record in records if self._awaited else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Keep the text of a record that has not failed, if a later turn needs it."""
        if record.sample in self._awaited and record.error is None:
            self._texts[record.key] = record.text

    def before(self, cell: str, sample: Sample, repeat: int) -> list[dict[str, str]]:
        """Return the messages before a sample's turn, by user and assistant, oldest first.

        Raises UnansweredError where an earlier turn has no answer; a first turn has [].
        """
        turns: list[dict[str, str]] = []
        while sample.after is not None:
            sample = self._samples[sample.after]
            if (cell, sample.id, repeat) not in self._texts:
                raise UnansweredError(f"no answer to {sample.id}: expected one to go on from")
            turns[:0] = [
                {"role": "user", "content": sample.prompt},
                {"role": "assistant", "content": self._texts[cell, sample.id, repeat]},
            ]
        return turns


FAILURES = (
    NonFiniteError,
    DeadEndError,
    RuntimeError,
    MemoryError,
    UnansweredError,
    RefusedPromptError,
)  # errors of one sample; other errors end the run


EMPTY = Record(prompt_tokens=0, tokens=[], text="", finish="", prefill_seconds=0.0, rounds=[])


class Job(NamedTuple):
    """One generation to be made."""

    cell: Cell
    sample: Sample
    repeat: int

    @property
    def key(self) -> Key:
        """Return the key of the job's record."""
        return self.cell.id, self.sample.id, self.repeat

    def record(self, generated: Record = EMPTY, **facts: Any) -> Record:
        """Return a copy of `generated` with this job's key, its sample's group and cut, `facts`."""
        return replace(
            generated,
            cell=self.cell.id,
            sample=self.sample.id,
            repeat=self.repeat,
            prompt_cut=self.sample.cut,
            group=self.sample.group,
            **facts,
        )


def part_jobs(part: TaskPart, samples: Sequence[Sample], seed: int) -> Iterator[Job]:
    """Yield all generations of a part: samples in order, the methods of each in random order.

    Methods follow one another on a prompt, so that a drifting machine slows all of them alike;
    the order is drawn again for each prompt, so that none always comes first. Greedy methods give
    the same text each time: they run for repeats, which add timings, and not for samples.
    """
    for sample in samples:
        for repeat in range(part.samples * part.repeats):
            cells = [c for c in part.cells if repeat < repeats_of(c, part.samples, part.repeats)]
            random.Random(f"{seed}/{sample.id}/{repeat}").shuffle(cells)
            yield from (Job(cell, sample, repeat) for cell in cells)


def generations(part: TaskPart, prompts: int) -> dict[str, int]:
    """Return cell id -> number of jobs with so many `prompts`, without creating them."""
    return {cell.id: prompts * repeats_of(cell, part.samples, part.repeats) for cell in part.cells}


def samples_of(part: TaskPart, models: Rooms) -> list[Sample]:
    """Return the samples of a part; their prompts fit the shortest context of all its cells."""
    return take_samples(part.task.samples, fitting(part, models), part.limit, part.sample_seed)


def uncut(part: TaskPart) -> list[Sample]:
    """Return the samples of a part as in the data, without models."""
    return take_samples(part.task.samples, lambda sample: True, part.limit, part.sample_seed)


def fitting(part: TaskPart, models: Rooms) -> Fits:
    """Return a test whether a prompt and its new tokens fit a part's shortest context, if any."""
    loads = [(models(cell), cell.max_new_tokens) for cell in part.cells]
    limits = [load.limit - new for load, new in loads if load.limit is not None]
    first, cell = loads[0][0], part.cells[0]
    room = min(limits, default=None)
    return lambda sample: room is None or len(prompt_ids(first, cell, sample)) <= room


def run_job(
    job: Job,
    models: Loaded,
    *,
    answers: Answers | None = None,
    compare: Callable[[Cell], Loaded] | None = None,
    batch: Batch | None = None,
) -> Record:
    """Run one generation and return its record; one of its `FAILURES` is the record's `error`.

    `answers` are those to earlier turns, to which the caller adds the record; None: the sample is
    none of a conversation. `compare` returns the models for the `distance` of a quantised target
    from the full-precision one; None: no comparison. `batch`: it is a row of that; None: alone. The
    record has the peak memory, and the flag `loaded` if other work ran. Other errors are raised.
    """
    cell, sample, repeat = job
    before = read_clocks()
    generated, error = EMPTY, None
    try:
        earlier = answers.before(cell.id, sample, repeat) if answers is not None else []
        prompt = job_prompt(models, cell, sample, earlier)
        count = len(prompt) + cell.max_new_tokens
        if earlier and models.limit is not None and count > models.limit:
            raise UnansweredError(
                f"the conversation needs {count} tokens: the context holds {models.limit}"
            )
        generation = Generation(
            cell, models, prompt, sample.id, repeat, batch, json_schema=sample.json_schema
        )
        for _ in generation:
            pass
        generated = generation.record
        if wrong := generated.problem:
            generated, error = EMPTY, f"impossible record: {wrong}"
    except FAILURES as failure:
        error = f"{type(failure).__name__}: {failure}"
    disturbed = was_disturbed(before, read_clocks())
    far = None
    free = error is None and generated.masks is None  # a distance has no masks
    if compare is not None and free and not isinstance(prompt, EnginePrompt):
        far = distance(cell, prompt, generated.tokens, compare)
    return job.record(
        generated,
        distance=far,
        peak_memory_mib=peak_memory_mib() if error is None and not cell.elsewhere else None,
        peak_gpu_mib=torch.cuda.max_memory_allocated() / 2**20 or None,
        error=error,
        flags=("loaded",) * disturbed,
    )


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process in MiB, without GPU memory."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Unit(NamedTuple):
    """Generations that are made in one process, one after the other."""

    jobs: Sequence[Job]
    turns: Sequence[Sample] = ()  # all samples of its conversations
    answers: Iterable[Record] = ()  # existing ones of them; on a worker, their texts alone


def units_of(
    missing: Sequence[Job], samples: Sequence[Sample], records: Iterable[Record]
) -> Iterator[Unit]:
    """Yield units of a part's missing jobs: of one target, prompt or conversation, and repeat.

    Units of one target follow one another. That of a conversation has all its turns of `samples`
    and, as texts alone, their answers in `records` of its repeat; one of a prompt has neither.
    """
    conversations = group_by(samples, lambda sample: sample.id.partition(TURN)[0])
    awaited = {sample.after for sample in samples if sample.after is not None}
    answers = [
        replace(record, tokens=[], rounds=[], laws=None)
        for record in (records if awaited else ())
        if record.sample in awaited and record.error is None
    ]
    targets = list(dict.fromkeys(job.cell.target for job in missing))
    by_unit = group_by(
        missing, lambda j: (targets.index(j.cell.target), j.sample.id.partition(TURN)[0], j.repeat)
    )
    for (_, name, repeat), of_unit in sorted(by_unit.items(), key=lambda item: item[0][0]):
        turns = tuple(conversations[name])
        ids = {turn.id for turn in turns} if len(turns) > 1 else set[str]()
        earlier = tuple(a for a in answers if a.repeat == repeat and a.sample in ids)
        yield Unit(tuple(of_unit), turns if ids else (), earlier)


def groups(missing: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs that are made together: one at a time, or those of a cell that share a batch.

    Methods of as many prompts as the largest batch has follow each other. A continuous batch has
    all jobs of its cell; a later turn of a conversation waits for the batch of the turn before.
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

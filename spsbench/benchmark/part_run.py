"""Make the missing records of a part: cells are warmed up, arms of a prompt run in turn."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Protocol

from spsbench.benchmark.conductor import never
from spsbench.benchmark.generation import WARM_UP_TOKENS, check_cache
from spsbench.benchmark.jobs import Answers, Job, jobs, key, make, prompt_ids, warm_up
from spsbench.loop.batch import Batch
from spsbench.loop.request_batch import RequestBatch
from spsbench.models.cache import Loaded
from spsbench.serving.acceptance import Acceptance, contradiction
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample


class RecordStore(Protocol):
    """The destination of records: a run folder, or a list in a test."""

    def is_missing(self, key: Key) -> bool:
        """Return whether this record is missing and belongs to this shard."""

    def append(self, record: Record) -> None:
        """Write the record and wait until it is on disk."""

    def add_counters(self, cell: str, counts: Mapping[str, float]) -> None:
        """Add what an engine counted over several texts of a cell, and of none alone."""


class PartRun:
    """Makes and writes every missing record of a part.

    Args:
        part: cells over samples.
        samples: of the part, cut to the contexts of the models.
        models: returns the loaded models of a cell.
        store: receives the records, and says which are missing.
        experiment: its seed and its warm-up.
        earlier: existing records; later turns of a conversation need their answers.
        notify: called after each record.
        stop: polled before each generation; True ends the run.
    """

    def __init__(
        self,
        part: Part,
        samples: Sequence[Sample],
        models: Callable[[Cell], Loaded],
        store: RecordStore,
        *,
        experiment: Experiment,
        earlier: Iterable[Record] = (),
        notify: Callable[[Job, Record], None] = lambda job, record: None,
        stop: Callable[[], bool] = never,
    ) -> None:
        self.models, self.store, self.notify, self.stop = models, store, notify, stop
        self.answers = Answers(samples, earlier)
        every_job = jobs(part, samples, experiment.seed)
        self.missing = [job for job in every_job if store.is_missing(key(job))]
        self.warmup = experiment.warmup
        self._cold = warm_up_jobs(self.missing, self.warmup)
        self._is_first = True

    def carry_out(self) -> None:
        """Make the missing records; arms of a prompt in turn, so that drift slows all alike."""
        self.check_batches()
        for group in groups(self.missing):
            self.warm_up(group)
            for job, record in self.generate(group):
                self.keep(job, record)
            if self.stop():
                return

    def check_batches(self) -> None:
        """Refuse batches whose keys and values do not fit into memory, before any is begun.

        Raises:
            OutOfMemoryError: names the bytes of the batch, and how many rows fit.
        """
        batched: dict[Cell, list[Job]] = {}
        for job in self.missing:
            if job.cell.batch > 1 and not job.cell.elsewhere:
                batched.setdefault(job.cell, []).append(job)
        for cell, group in batched.items():
            models = self.models(cell)
            lengths = [len(prompt_ids(models, cell, job.sample.prompt)) for job in group]
            check_cache(cell, models, lengths, cell.batch)

    def warm_up(self, group: Sequence[Job]) -> None:
        """Make the first jobs of a cell without a record at its first group: first calls are slow.

        A start that is soon killed has then made records, instead of warming up all cells.
        """
        for number, job in enumerate(self._cold.pop(group[0].cell.id, ())):
            if self.stop():
                return
            models = self.models(job.cell)
            warm_up(job, models, answers=self.answers, depths=number == 0)
            if job.cell.batch > 1:
                warm_batch(group, models)

    def generate(self, group: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        """Yield the records of a group, each as it ends; after a `stop()` no other is begun."""
        cell, work = group[0].cell, group[0].cell
        make_record = partial(
            make, models=self.models(cell), first=False, answers=self.answers, compare=self.models
        )
        if work.batch == 1:
            yield from ((job, make_record(job)) for job in group if not self.stop())
            return
        batch = batch_of(cell)
        calls = (partial(make_record, job, batch=batch) for job in group)
        tokens, failed = list[int](), 0
        for row in batch.run(takewhile(lambda call: not self.stop(), calls)):
            rounds = [r._replace(processor_seconds=None) for r in row.result.rounds]  # of all rows
            record = replace(
                row.result,
                rounds=rounds,
                machine_seconds=row.share,
                empty_seconds=max(0.0, row.share - row.seconds / work.batch),
            )
            tokens.append(sum(r.emitted for r in record.rounds))
            failed += record.error is not None
            yield group[row.number], record
        if isinstance(batch, RequestBatch) and not failed:
            self.keep_counters(cell.id, batch.summary, tokens)

    def keep_counters(self, cell: str, counts: Acceptance | None, tokens: Sequence[int]) -> None:
        """Write what a server counted over texts of so many tokens each, if it can be theirs."""
        if counts is None or contradiction(counts, sum(tokens)):
            return
        sums = {"texts": len(tokens), "rounds": counts.rounds, "accepted": counts.accepted}
        drafted = {} if counts.drafted is None else {"drafted": counts.drafted}
        self.store.add_counters(cell, sums | drafted)

    def keep(self, job: Job, record: Record) -> None:
        """Write a record; without a warm-up the first one after a start is flagged."""
        if self._is_first and not self.warmup:
            record = replace(record, flags=("first", *record.flags))
        self._is_first = False
        self.answers.add(record)
        self.store.append(record)
        self.notify(job, record)


def groups(missing: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs that are made together: one at a time, or those that share a batch.

    The arms of the prompts of one batch still follow each other. A continuous batch has all jobs of
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


def batch_of(cell: Cell) -> Batch:
    """Return a batch whose rows share passes, or one whose rows are requests to a server."""
    kind = RequestBatch if cell.elsewhere else Batch
    return kind(cell.batch, continuous=cell.continuous)


def warm_batch(group: Sequence[Job], models: Loaded) -> None:
    """Make a few tokens of a batch, so that first calls enter no figure."""
    size = group[0].cell.batch
    batch = batch_of(group[0].cell)
    few = [job._replace(cell=job.cell.but(max_new_tokens=WARM_UP_TOKENS)) for job in group]
    for _ in batch.run(partial(make, job, models, first=True, batch=batch) for job in few[:size]):
        pass


def warm_up_jobs(missing: Sequence[Job], prompts: int) -> dict[str, list[Job]]:
    """Return cell -> its first jobs, as many as `prompts`."""
    first: dict[str, list[Job]] = {}
    for job in missing:
        of_cell = first.setdefault(job.cell.id, [])
        if len(of_cell) < prompts:
            of_cell.append(job)
    return first

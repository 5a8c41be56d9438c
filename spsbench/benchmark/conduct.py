"""Run an experiment: models, records, scores and summary. Prints nothing and parses no arguments.

Programs are scored by `sps score` in a separate process without torch, never beside the models.
"""

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.benchmark.estimate import estimate_times
from spsbench.benchmark.jobs import Rooms, digest_of_ids, part_jobs, samples_of, uncut
from spsbench.benchmark.maker import RecordMaking
from spsbench.benchmark.models import Models, folders_for, memory, resolve_experiment
from spsbench.benchmark.run import Run
from spsbench.benchmark.trace_run import OnProgress, check_traceable, trace_part
from spsbench.errors import Exit, UsageError
from spsbench.hardware.ranks import ranks
from spsbench.hardware.signals import graceful
from spsbench.messages import ignore, no_lines
from spsbench.methods.build import forget_memories, use_threads
from spsbench.methods.measured_costs import learn_costs
from spsbench.methods.resolve import resolve
from spsbench.methods.round_costs import asks_for_costs, known_costs
from spsbench.models.cache import ModelCache
from spsbench.models.tokenizers import markup_note
from spsbench.parallel.process_group import on_rank_0
from spsbench.registry import COMMANDS, is_installed
from spsbench.reports.run_tables import conclude_run
from spsbench.settings.cell import short_hash
from spsbench.settings.execution import HERE, Access, OutputFolder, Workers
from spsbench.settings.experiment import Experiment, ExperimentRequest
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import flag_of
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.manifest import Manifest
from spsbench.store.provenance import run_fingerprint
from spsbench.store.records import records, withhold_texts
from spsbench.store.run import RunWriter, open_run
from spsbench.store.run_folder import check_writable
from spsbench.store.starts import Provenance, Start, memory_before
from spsbench.tasks.reader import digest_of
from spsbench.tasks.scores import score_missing
from spsbench.workers.environment import worker_provenance

log = logging.getLogger(__name__)

RESULTS = Path("results")
PROGRAM = "import sys; from spsbench.cli.main import main; sys.argv[0] = 'sps'; main()"
POLL = 0.2  # seconds


@dataclass(kw_only=True)
class Benchmark:
    """Makes the records of experiments, each in a folder that can be continued."""

    place: OutputFolder  # the folder, else results/NAME-HASH, and whether to go on with its content
    access: Access
    model_cache: ModelCache
    name: str
    watch: Callable[[Any], None] = ignore  # called with a `RunProgress`
    stop: Callable[[], bool] = lambda: False  # polled between pieces of work; finished ones stay
    workers: Workers = Workers()  # make the pieces; by default this process
    traced: OnProgress = lambda done, total: None

    def run(self, experiment: Experiment) -> Run:
        """Make an experiment's missing records and traces, score and report them; return the run.

        Its `finished` is None if it was stopped, or on ranks above 0, which write nothing; its
        `scored` is the exit code of scoring programs. Memory measured on a busy machine is measured
        again at the end. With `no_texts`, digests replace texts and token ids at the end. Raises
        SpsError where models, data or the folder cannot be used, or where a shard gets no sample.
        """
        folders, identity, folder = self._prepare(experiment)
        if ranks().rank > 0:  # rank 0 writes
            with self._of_run(followed := follow_run()):
                self._records(experiment, followed)
            return Run(folder, 0)
        place, shard = self.place, self.place.slice
        manifest = self._manifest(experiment, identity)
        how = {"resume": place.resume, "overwrite": place.overwrite}
        with open_run(folder, manifest, shard=shard, **how) as writer:
            conditions = self._conditions(experiment, folders, writer.starts)
            writer.start(conditions)
            follow_run(writer)
            with self._of_run(writer):
                samples = self._records(experiment, writer)
                if not writer.count and not self.stop():
                    raise UsageError(
                        f"`shard` {self.place.shard} gets no sample: expected at most as many "
                        "shards as samples. Leave this one out"
                    )
                self._traces(experiment, writer)
            if not writer.count:
                return Run(folder, 0)  # stopped before the first record: no file stays
            score_missing(experiment, samples, folder, shard, self.stop)
            if self.stop():
                return Run(folder, writer.count)
            if (first := conditions.memory) and first.loaded:
                log.info("note: memory was measured on a busy machine: it is measured again")
                if again := memory(experiment, folders):
                    again.bandwidth = max(first.bandwidth, again.bandwidth)  # other work lowers it
                    again.prompt = {
                        name: min(seconds, first.prompt.get(name, seconds))
                        for name, seconds in again.prompt.items()
                    }
                    writer.note(memory=again)
        scored = self._judge(experiment, folder)
        if experiment.no_texts:
            withhold_texts(folder, shard)
        return Run(folder, writer.count, conclude_run(folder), scored)

    def _conditions(
        self, experiment: Experiment, folders: dict[ModelSpec, Path], before: Sequence[Start]
    ) -> Provenance:
        """Return this start's provenance; here also with memory, of starts `before` or measured."""
        conditions = worker_provenance(cell.target.device for cell in experiment.cells)
        if self.workers.kind == HERE:  # with workers, this machine's conditions do not matter
            conditions.memory = memory(experiment, folders, memory_before(before, conditions))
        return conditions

    def _manifest(self, experiment: Experiment, identity: dict[str, Any]) -> Manifest:
        """Return the manifest of a new run; log a note on plain prompts with tokens of a template.

        It has the options; by task the ids of samples and a digest of the uncut prompts; and by
        cell, where its tokenizer is local, a digest of the prompts' tokens.
        """
        manifest = Manifest(
            experiment=experiment.described(),
            cells={cell.id: cell.to_json() for cell in experiment.cells},
            fingerprint=identity,
        )
        ids: dict[str, list[str]] = {}
        prompts: dict[str, str] = {}
        of_cells: dict[str, str] = {}
        for part in experiment.parts:  # parts may share a task
            task, samples = str(part.spec), uncut(part)
            of_task = ids.setdefault(task, [])
            of_task += [sample.id for sample in samples if sample.id not in of_task]
            prompts[task] = digest_of(sample.prompt for sample in samples)
            digests: dict[Hashable, str] = {}
            for cell in part.cells:
                models = replace(self.model_cache.encoder(cell), clock=manifest.created)
                if models.tokenizer is not None:
                    key = (cell.target, cell.chat, cell.system)
                    if key not in digests:
                        digests[key] = digest_of_ids(models, cell, samples)
                        plain = () if cell.chat else (sample.prompt for sample in samples)
                        if (note := markup_note(models.tokenizer, plain)) is not None:
                            log.info(f"note: {note}")
                    of_cells[cell.id] = digests[key]
        manifest.experiment.update(samples=ids, prompts=prompts, prompt_ids=of_cells)
        return manifest

    def estimate(self, experiment: Experiment) -> Iterator[str]:
        """Yield a line on the time of each cell, then of all, from short generations made for it.

        Nothing is written. Raises SpsError where models, data or the folder cannot be used.
        """
        *_, folder = self._prepare(experiment)
        yield from estimate_times(experiment, Models(self.model_cache), folder)

    def resolve(self, request: ExperimentRequest) -> Experiment:
        """Return the requested experiment, with every cell checked; UsageError: an invalid one.

        Without workers, torch's threads are set, and costs of rounds that a schedule takes from
        this machine are measured first, where they are unknown.
        """
        resolver = partial(resolve, vocabularies=self.model_cache.vocabularies)
        if self.workers.kind == HERE:
            use_threads(request.whole.threads)
            for cell in request.cells:
                if asks_for_costs(cell) and known_costs(cell) is None:
                    with no_lines():
                        loadable = resolver(cell)
                    learn_costs(cell, self.model_cache.load(loadable))
        return resolve_experiment(request, resolver)

    def _prepare(
        self, experiment: Experiment
    ) -> tuple[dict[ModelSpec, Path], dict[str, Any], Path]:
        """Set threads, find the models, check what workers and the folder allow, and log the parts.

        Returns the models' folders, the run's fingerprint and its folder. Raises UsageError for
        engines elsewhere, batches or ranks with workers, and for cells that cannot be traced;
        SpsError where a model or the folder cannot be used.
        """
        if self.workers.kind != HERE and any(cell.elsewhere for cell in experiment.cells):
            raise UsageError(
                "`workers` with a decoder whose engine is elsewhere: expected one process, since "
                "others would disturb its times. Leave `workers` out"
            )
        for part in experiment.parts:
            check_traceable(part)
            single = any(cell.batch > 1 or cell.ranks > 1 for cell in part.cells)
            if self.workers.kind != HERE and single:
                raise UsageError(
                    "`batch` or several ranks with `on`: expected one of them, since units of "
                    "workers are made one by one in a process. Leave `on` out"
                )
        use_threads(experiment.threads)
        check_writable(self.place.out or RESULTS)
        folders = folders_for(experiment.cells, self.access)
        identity = run_fingerprint(experiment, folders)
        folder = self.place.out or RESULTS / f"{self.name}-{short_hash(identity, 8)}"
        for part in experiment.parts:
            log.info(f"{part.spec.name}: {part.task.title}")
        return folders, identity, folder

    def _records(self, experiment: Experiment, writer: RunWriter) -> list[list[Sample]]:
        """Write every missing record, until `stop()`; return the samples of each part.

        Samples of parts that lack records have their prompts cut to the contexts of the models,
        others are as in the data. What drafters learnt is forgotten first.
        """
        models = Models(self.model_cache)
        contexts: Rooms = models if self.workers.kind == HERE else self.model_cache.outline
        samples = []
        for part in experiment.parts:
            whole = uncut(part)
            jobs = part_jobs(part, whole, experiment.seed)
            is_missing = any(writer.is_missing(job.key) for job in jobs)
            samples.append(samples_of(part, contexts) if is_missing else whole)
        forget_memories()
        making = RecordMaking(
            experiment=experiment,
            samples=samples,
            writer=writer,
            watch=self.watch,
            stop=partial(on_rank_0, self.stop),
        )
        making.make(self.workers, self.access, models)
        return samples

    def _traces(self, experiment: Experiment, writer: RunWriter) -> None:
        """Write the missing traces of drafts along the run's texts, until `stop()` is True.

        Raises MismatchError where existing traces are of other texts or drafts.
        """
        models = Models(self.model_cache)
        for part in experiment.parts:
            if not part.traced or self.stop():
                continue
            trace_part(
                part,
                samples_of(part, models),
                lambda: records(writer.folder),
                models,
                folders_for(part.cells + part.traced, self.access),
                writer.folder,
                writer.shard,
                on_progress=self.traced,
                stop=self.stop,
            )

    @contextmanager
    def _of_run(self, writer: RunWriter) -> Iterator[None]:
        """Give the cache this run's clock, for chat templates, and tuning choices; save new ones.

        Choices made before are saved at once. Afterwards the cache has no clock and saves choices
        as it did before, so that it does not write into a finished run.
        """
        choices, before = self.model_cache.choices, self.model_cache.chosen
        choices.update(writer.engines)
        self.model_cache.clock = writer.manifest.created

        def keep() -> None:
            writer.note(engines=choices)

        self.model_cache.chosen = keep
        if choices:  # chosen for models loaded earlier
            keep()
        try:
            yield
        finally:
            self.model_cache.chosen, self.model_cache.clock = before, None

    def _judge(self, experiment: Experiment, folder: Path) -> int:
        """Score programs by `sps score`, unless it is turned off, and return the exit code.

        It is OK without programs, and where nothing here can run them, unless `score` is True: then
        it is SANDBOX. A line logs where to score them.
        """
        if self.place.score is False or not any(part.task.programs for part in experiment.parts):
            return Exit.OK
        if not is_installed(COMMANDS["score"][0]):
            log.info(
                "the run is complete, but its programs are not scored: nothing here runs programs "
                f"(spsbench has no `sps score`). Score it where it has: sps score {folder}"
            )
            return Exit.SANDBOX if self.place.score else Exit.OK
        scored = score_apart(folder)
        unasked = scored == Exit.SANDBOX and self.place.score is None  # a message was printed
        return Exit.OK if unasked else scored


class FollowedRun(RunWriter):
    """Rank 0's run on another rank, where nothing is written."""

    def __init__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def append(self, record: Record, machine: str | None = None) -> None:
        """Do nothing with a record: rank 0 writes it."""

    def note(self, **facts: Any) -> None:
        """Do nothing with facts: rank 0 writes them."""


def follow_run(writer: Any = None) -> FollowedRun:
    """Return a copy of rank 0's `writer` that writes nothing; every rank has to call it."""
    state = on_rank_0(lambda: {n: v for n, v in vars(writer).items() if not n.startswith("_")})
    return FollowedRun(state)


def score_apart(folder: Path) -> int:
    """Score the programs of a run by `sps score` in another process; return its exit code.

    After any failure the run is kept, and a line on how to continue is logged. SIGTERM and SIGHUP
    are passed on; a process that a signal killed gives Exit.INTERNAL. Its figures are not printed.
    """
    # -P: files in the working directory must not shadow modules
    command = [sys.executable, "-P", "-c", PROGRAM, "score", str(folder), flag_of("allow_partial")]
    with graceful() as interrupt:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        forwarded = False
        while True:
            try:
                code = process.wait(POLL)
                break
            except subprocess.TimeoutExpired:
                # Ctrl-C reaches the process by itself: it is in the same process group
                if interrupt.signal not in (None, signal.SIGINT) and not forwarded:
                    process.send_signal(interrupt.signal or signal.SIGTERM)
                    forwarded = True
    if code:
        log.info(
            f"the run is complete, but its programs are not scored (exit code {code}). "
            f"Go on with: sps score {folder}"
        )
    return code if code >= 0 else Exit.INTERNAL

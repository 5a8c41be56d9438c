"""Jobs of an audit: generation of a text by the loop under audit and its examination.

Small models on a CPU leave cores idle, so each core gets a process with models of its own. Results
come in the order of the jobs, so the audit of a seed is deterministic.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
import transformers

from spsbench.audit.statistical.audit import Impossible
from spsbench.audit.statistical.betting import Evidence, Floats
from spsbench.audit.statistical.examine import (
    DraftLaw,
    Examiner,
    Likeliest,
    Proposal,
    Suspect,
    Text,
)
from spsbench.audit.statistical.forward import PRECISE, Scorer, is_packed, plain
from spsbench.benchmark.generation import Generation
from spsbench.errors import UnavailableError, UsageError
from spsbench.hardware.environment import usable_cores
from spsbench.hardware.memory import ram
from spsbench.loop.drafter_context import Drawn, Weights
from spsbench.methods.build import LoadedDrafterContext
from spsbench.methods.drafters.cross_tokenizer import StringDrafter
from spsbench.methods.resolve import plan_of, resolve
from spsbench.models.cache import Loaded, ModelCache
from spsbench.plugins import make
from spsbench.settings.cell import OWN_LOOP, WARP, Cell, WarpSettings
from spsbench.settings.execution import Access, Workers
from spsbench.settings.grid import lacks_baseline
from spsbench.settings.records import Record
from spsbench.spec import Spec
from spsbench.workers.map_units import map_units
from spsbench.workers.work import Work


def plain_cell(cell: Cell) -> Cell:
    """Return the cell of auto-regressive sampling by the same decoder, engine and warp."""
    return plain_here(cell) if lacks_baseline(cell) else resolve(cell.auto_regressive)


def plain_here(cell: Cell) -> Cell:
    """Return the cell of this package's own auto-regressive sampling, which needs the weights.

    Raises:
        UsageError: another engine alone has them.
    """
    if cell.target.served:
        raise UsageError(
            f"`decoder` {cell.decoder.name} without the weights: expected the model that it "
            "runs, to score its text. Name it with `target`, or use `sps check`"
        )
    return resolve(cell.auto_regressive.but(decoder=Spec(OWN_LOOP)))


def text_of(prompt: Sequence[int], record: Record, name: str) -> Text:
    """Return a record in the form that the audit reads."""
    return Text(
        tuple(prompt),
        tuple(record.tokens),
        tuple(r.emitted for r in record.rounds),
        tuple(r.drafted for r in record.rounds),
        name,
    )


def generate(cell: Cell, loaded: Loaded, prompt: Sequence[int], sample: str, repeat: int) -> Text:
    """Generate one text of `cell`, by the shipping loop."""
    generation = Generation(cell, loaded, prompt, sample, repeat)
    for _ in generation:
        pass
    return text_of(prompt, generation.record, f"{sample} #{repeat}")


AGREE = 1e-3  # tolerance of logits, and of total variation, in float32
OPINIONS = 4  # texts rescored by transformers


def examiner_of(cell: Cell, loaded: Loaded) -> Examiner:
    """Return the examiner of texts of `cell`, which ArS and SpS share for comparability."""
    reload = not (cell.target.trust_remote_code or cell.random)
    return Examiner(
        Scorer(loaded.target, loaded.vocab_size, reload=reload),
        suspect_of(cell, loaded, reload=reload),
        cell.warp,
        frozenset(loaded.eos),
        budget=cell.max_new_tokens,
        ends=not cell.ignore_eos,
        seed=cell.seed % 2**32,
    )


def suspect_of(cell: Cell, loaded: Loaded, *, reload: bool) -> Suspect:
    """Return the law towards which a faulty method would shift the text."""
    if loaded.draft is not None and loaded.draft_tokenizer is None:
        scorer = Scorer(loaded.draft, loaded.vocab_size, reload=reload)
        return DraftLaw(scorer, cell.warp)
    if loaded.vocabularies is not None:  # the drafter's text determines its proposals
        foreign = LoadedDrafterContext(cell, loaded, StringDrafter.plan())
        return Proposal(lambda: StringDrafter.open(foreign))
    if cell.elsewhere:
        return Likeliest()
    plan = plan_of(cell.drafter)
    if plan.drawn is Drawn.POINT and plan.weights is Weights.NONE and not plan.target:
        context = LoadedDrafterContext(cell, loaded, plan)
        return Proposal(lambda: make("drafters", cell.drafter, context))
    return Likeliest()


def doubt(examiner: Examiner, loaded: Loaded, texts: Sequence[Text]) -> str:
    """Return why the examiner's laws may be wrong; packed layers are no opinion on their engine."""
    if is_packed(referee := examiner.scorer.model):
        return "no memory for a forward pass of transformers' own beside the engine's"
    tolerance = AGREE if loaded.target.dtype in PRECISE else 0.5
    for text in texts[:OPINIONS]:
        rows = examiner.scorer.logits(text.prompt, text.tokens)
        if not len(rows):
            continue
        if not (loaded.target is referee or is_packed(loaded.target)):
            whole = [*text.prompt, *text.tokens[: len(rows) - 1]]
            theirs = plain(loaded.target, whole, len(rows))[:, : rows.shape[1]].numpy()
            if np.abs(theirs - rows).max() > tolerance * max(1.0, float(np.abs(rows).max())):
                return "transformers' own laws are not the scorer's"
        apart = np.abs(warped(rows, examiner) - examiner.laws(rows).law).sum(-1) / 2
        if np.median(apart) > AGREE:  # a tie at the boundary may move single rows
            return "transformers' own laws are not the scorer's"
    return ""


def warped(logits: Floats, examiner: Examiner) -> Floats:
    """Return [n, V] laws by transformers' warpers, named after options: `TopKLogitsWarper`."""
    scores, usual = torch.from_numpy(np.array(logits, np.float64)), WarpSettings()
    for name in WARP:
        value = getattr(examiner.warp, name)
        if value != getattr(usual, name):
            warper = getattr(transformers, f"{name.title().replace('_', '')}LogitsWarper")
            scores = warper(value)(None, scores)
    law: Floats = scores.softmax(-1).numpy()
    return law


SMALL = 200_000_000  # parameters of target and draft together; larger ones use all cores alone
COPIES = 2  # of each model in a worker: the engine's and the scorer's


class Prompt(NamedTuple):
    """A prompt by name."""

    name: str
    ids: tuple[int, ...]


class AuditJob(NamedTuple):
    """One text to generate and examine."""

    speculative: bool
    prompt: Prompt
    repeat: int


class Done(NamedTuple):
    """Result of a job."""

    job: AuditJob
    evidence: Evidence
    impossible: list[Impossible]


def jobs(prompts: Sequence[Prompt]) -> Iterator[AuditJob]:
    """Yield jobs without end: for each prompt one ArS text between three SpS texts."""
    for cycle in count():
        for prompt in prompts:
            yield AuditJob(True, prompt, 3 * cycle)
            yield AuditJob(False, prompt, cycle)
            yield AuditJob(True, prompt, 3 * cycle + 1)
            yield AuditJob(True, prompt, 3 * cycle + 2)


def plain_jobs(prompts: Sequence[Prompt]) -> Iterator[AuditJob]:
    """Yield jobs without end: ArS texts that `jobs` does not make."""
    for cycle in count(1 << 20):
        for prompt in prompts:
            yield AuditJob(False, prompt, cycle)


@dataclass(frozen=True, slots=True)
class Workbench:
    """Models, and the two methods that run on them."""

    cell: Cell
    plain: Cell
    loaded: Loaded
    examiner: Examiner

    @classmethod
    def of(cls, cell: Cell, loaded: Loaded) -> "Workbench":
        """Make the workbench of a resolved cell."""
        return cls(cell, plain_cell(cell), loaded, examiner_of(cell, loaded))

    def perform(self, job: AuditJob) -> Done:
        """Generate and examine."""
        cell = self.cell if job.speculative else self.plain
        text = generate(cell, self.loaded, job.prompt.ids, job.prompt.name, job.repeat)
        return Done(job, *self.examiner.examine(text))


def perform_in_order(
    bench: Workbench,
    work: Iterable[AuditJob],
    receive: Callable[[Done], bool],
    *,
    workers: int,
    access: Access,
) -> None:
    """Perform jobs in this process or in `workers` others, until `receive` returns True.

    Args:
        receive: takes the result of each job, in the order of the jobs.

    Raises:
        UnavailableError: a job that failed in every worker.
        SpsError: any error of the models and methods.
    """
    if workers == 1:
        any(receive(bench.perform(job)) for job in work)
        return
    waiting: dict[int, Done] = {}
    next_index, over = 0, False

    def take(unit: tuple[int, AuditJob], done: Done | Exception) -> None:
        nonlocal next_index, over
        if isinstance(done, Exception):
            raise done
        waiting[unit[0]] = done
        while not over and next_index in waiting:
            over = receive(waiting.pop(next_index))
            next_index += 1

    def give_up(unit: tuple[int, AuditJob], error: str) -> None:
        raise UnavailableError(
            f"no worker could audit a text of {unit[1].prompt.name} ({error}): expected all to "
            "live. Look for what ended them, such as too little memory, or use fewer `workers`"
        )

    processes, texts = (
        Workers(on=f"processes:{workers}"),
        AuditTexts(cell=bench.cell, edge=bench.examiner.edge, access=access),
    )
    map_units(processes, texts, enumerate(work), take=take, give_up=give_up, stop=lambda: over)


@dataclass(frozen=True, kw_only=True)
class AuditTexts(Work):
    """Work of a worker process: texts generated and examined with models of its own.

    Args:
        edge: tolerance of the examiner.
    """

    cell: Cell
    edge: float
    access: Access

    def prepare(self) -> None:
        """Limit this process to one thread, which leaves the other cores to other processes."""
        torch.set_num_threads(1)

    def __call__(self, unit: tuple[int, AuditJob]) -> Done | Exception:
        """Return the result of a job; an error keeps its type, and is not retried."""
        try:
            return self._bench.perform(unit[1])
        except Exception as error:
            return error

    @cached_property
    def _bench(self) -> Workbench:
        bench = Workbench.of(self.cell, ModelCache(self.access).load(self.cell))
        return replace(bench, examiner=replace(bench.examiner, edge=self.edge))


def workers_for(cell: Cell, loaded: Loaded) -> int:
    """Return the number of workers: one per core for small models on the CPU, else one."""
    if cell.ranks > 1 or cell.elsewhere:
        return 1
    models = [model for model in (loaded.target, loaded.draft) if model is not None]
    size = sum(model.num_parameters() for model in models)
    cores = usable_cores()
    room = 0.5 * ram()[1] > 4 * size * COPIES * cores
    return cores if loaded.target.device.type == "cpu" and size < SMALL and room else 1

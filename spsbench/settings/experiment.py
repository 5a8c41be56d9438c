"""Experiments: files in TOML, whose tables expand to tasks and cells."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from spsbench.errors import MismatchError, MissingError, UsageError
from spsbench.plugins import fix_spec, make, plug_in
from spsbench.registry import entries
from spsbench.settings.cell import Cell, CellRequest
from spsbench.settings.cell_from_options import chat_sampling, describe_defaults
from spsbench.settings.execution import Access, OutputFolder, Workers
from spsbench.settings.grid import MAX_SAMPLES, GridPoint, Sweep, lacks_baseline
from spsbench.settings.models import NOTHING, ModelFacts, ModelSpec
from spsbench.settings.options import RUN, SIZE, Option, between, name_file
from spsbench.settings.task import Task
from spsbench.spec import Spec
from spsbench.untrusted import path_above, read_toml

log = logging.getLogger(__name__)

COUNTS = ("limit", "samples", "repeats", "sample_seed")  # fields of a table and of its parts


def repeats_of(cell: Cell, samples: int, repeats: int) -> int:
    """Return how often a cell answers one prompt; greedy texts are alike and have no samples."""
    return repeats * (samples if cell.temperature > 0 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPart:
    """The cells of one task, and how many samples each of them gets."""

    spec: Spec
    task: Task
    cells: tuple[Cell, ...]
    limit: int | None
    samples: int
    repeats: int
    sample_seed: int | None = None  # that draws the samples; None: the first ones
    traced: tuple[Cell, ...] = ()  # whose drafts are traced along the texts of its ArS cells

    @classmethod
    def from_described(
        cls, described: Mapping[str, Any], cells: Mapping[str, Cell], folder: Path
    ) -> "TaskPart":
        """Restore a part from the values of `described`, with those of its cells that `cells` has.

        The task is made from its data again, in the form for chats if a cell is of one. Data that a
        relative path does not name here are looked for above the run's `folder`; MissingError: not
        there either. MismatchError: the task's prompts are of another version now.
        """
        part_cells = tuple(cells[name] for name in described["cells"] if name in cells)
        specs = [cell.task for cell in part_cells if cell.task is not None]
        spec = specs[0] if specs else Spec.parse(described["task"])
        try:
            task = make("tasks", spec)
        except MissingError:
            name = plug_in("tasks", spec).data
            if (data := path_above(folder, str(dict(spec.args).get(name)))) is None:
                raise
            args = {**dict(spec.args), name: str(data)}
            task = make("tasks", replace(spec, args=tuple(args.items())))
        if any(cell.chat for cell in part_cells):
            task = task.instruct() or _without_instructions(spec)
        if task.prompt_version != described["prompt_version"]:
            raise MismatchError(
                f"other prompts ({spec}): expected those of the run, version "
                f"{described['prompt_version']}, found {task.prompt_version}. Restore its data"
            )
        numbers: dict[str, Any] = {name: described.get(name) for name in COUNTS}
        return cls(spec=spec, task=task, cells=part_cells, **numbers)

    def described(self) -> dict[str, Any]:
        """Return what a manifest stores: task, title, prompt version, metrics, counts, cell ids."""
        return {
            "task": str(self.spec),
            "title": self.task.title,
            "prompt_version": self.task.prompt_version,
            "metrics": list(self.task.metrics),
            "limit": self.limit,
            **({} if self.sample_seed is None else {"sample_seed": self.sample_seed}),
            "samples": self.samples,
            "repeats": self.repeats,
            "cells": [cell.id for cell in self.cells],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Parts that run one after the other into one folder.

    Args:
        warmup: Warm-up prompts, run before anything is timed.
        title: Title of the report.
        paper: Show the paper's results (Chinchilla) next to the measured ones.
        no_texts: Leave a digest in the place of texts and token ids, once they are scored.
    """

    parts: tuple[TaskPart, ...] = ()
    seed: int = 0  # the first one of its cells
    warmup: Annotated[  # prompts of each cell run before anything is timed
        int, Option(SIZE, between(0, MAX_SAMPLES, "0 or more"))
    ] = 1
    title: Annotated[str, Option(RUN)] = ""
    paper: Annotated[bool, Option(RUN)] = False
    no_texts: Annotated[bool, Option(RUN)] = False
    threads: int | None = None

    @property
    def cells(self) -> list[Cell]:
        """Return every cell once, in order."""
        return list({cell.id: cell for part in self.parts for cell in part.cells}.values())

    def described(self) -> dict[str, Any]:
        """Return what a manifest stores: seed, warm-up, threads, parts, and what a report needs."""
        return {
            "title": self.title,
            "seed": self.seed,
            "warmup": self.warmup,
            "threads": self.threads,
            "paper": self.paper,
            **({"no_texts": True} if self.no_texts else {}),
            "parts": [part.described() for part in self.parts],
        }


BENCH = (Sweep, Experiment, OutputFolder, Access, Workers)
"""The records of a benchmark's options."""


class PartRequest(NamedTuple):
    """A part of a requested experiment."""

    part: TaskPart  # without cells
    cells: Sequence[CellRequest]
    is_traced: bool  # whether drafts of its speculative cells are traced


class ExperimentRequest(NamedTuple):
    """A requested experiment: `whole` has no parts.

    `benchmark.models.resolve_experiment` makes an `Experiment` of it.
    """

    whole: Experiment
    parts: Sequence[PartRequest]

    @property
    def cells(self) -> list[CellRequest]:
        """Return every requested cell once, in order."""
        return list(dict.fromkeys(cell for part in self.parts for cell in part.cells))


def expand_tables(
    tables: Sequence[Sweep],
    facts: ModelFacts = NOTHING,
    whole: Experiment = Experiment(),
    points: Sequence[Sequence[GridPoint]] | None = None,
) -> ExperimentRequest:
    """Make the tasks and expand the tables to parts; reads data but loads no model.

    The seed of the first of the `tables` (one at least) is that of the whole. `facts` is what files
    say of the models, for chats and heads; `whole` has the options for all parts; `points` are
    those of each table (None: made here). SpsError: data that cannot be used. UsageError, which
    names the file of the table: options that contradict each other or the task.
    """
    tasks: dict[Spec, Task] = {}
    parts: list[PartRequest] = []
    points = points or [table.points(facts) for table in tables]
    for table, of_table in zip(tables, points, strict=True):
        with name_file(table.where):
            spec = task_spec(table)
            if spec not in tasks:
                tasks[spec] = make("tasks", spec)
            parts += make_parts(table, of_table, spec, tasks[spec], facts)
    if whole.no_texts:
        _check_no_texts(tables, [request.part for request in parts])
    return ExperimentRequest(replace(whole, seed=tables[0].seed[0]), parts)


def _check_no_texts(tables: Sequence[Sweep], parts: Sequence[TaskPart]) -> None:
    """Raise UsageError for a `record` with tokens, or a task whose programs run from records."""
    if other := next((table.record for table in tables if table.record != "counts"), None):
        raise UsageError(
            f"`no_texts` with `record` {other}: expected counts, since the other holds tokens. "
            "Leave one out"
        )
    if part := next((part for part in parts if part.task.programs), None):
        raise UsageError(
            f"`no_texts` with {part.spec}: expected a task whose texts are scored at once; "
            "programs are run from the records. Leave it out"
        )


def task_spec(table: Sweep) -> Spec:
    """Return a table's task with `data` (`auto` too); UsageError: no spec, no place for `data`."""
    try:
        spec = fix_spec(Spec.of_task(table.task))
    except ValueError as error:
        raise UsageError(f"task {error}") from error
    if table.data is None:
        return spec
    name = plug_in("tasks", spec).data
    if name is None:
        takers = (entry.name for entry in entries("tasks") if entry.load().data is not None)
        raise UsageError(f"`data` with {spec.name}: expected one of {', '.join(takers)} with it")
    if name in dict(spec.args):
        raise UsageError(f"`data` {table.data} with {spec}: expected the data named once")
    return replace(spec, args=(*spec.args, (name, table.data)))


def may_need_hub(table: Sweep) -> bool:
    """Return whether the data of a table may come from the hub."""
    spec = task_spec(table)
    return bool(plug_in("tasks", spec).online(dict(spec.args)))


def make_parts(
    table: Sweep, points: Sequence[GridPoint], spec: Spec, task: Task, facts: ModelFacts
) -> Iterator[PartRequest]:
    """Yield a table's part, two if only some models chat: the plain prompts first.

    Among several methods, K = 0 is left out for servers without a baseline. A log line names the
    sampling that chats take from a model. UsageError: `system` without a chat, `sample_seed`
    without `limit`, a `limit` above the number of samples, a trace of one method, or a wrong
    decoder.
    """
    chat_task = cache(partial(task_in_chat, task, spec, table.chat, facts))
    requests = [table.request(point, spec, task, chat_task, facts) for point in points]
    if len(table.method) > 1:  # a server without K = 0 has the other method alone
        requests = [cell for cell in requests if cell.k != 0 or not lacks_baseline(cell)]
    chats = {request.target: chat_task(request.target) for request in requests if request.chat}
    if table.system is not None and not chats:
        raise UsageError("`system` without a chat: expected a model with a template and `chat` on")
    for model in () if table.setting else chats:
        if applied := chat_sampling(model, facts, table.axes):
            log.info(describe_defaults(model, applied))
    if table.sample_seed is not None and table.limit is None:
        raise UsageError(
            f"`sample_seed` is {table.sample_seed}: expected `limit` with it, the number of "
            "prompts to draw. Name it, or leave `sample_seed` out"
        )
    for chat in (False, True):
        chosen = [request for request in requests if request.chat == chat]
        if not chosen:
            continue
        of_part = next(iter(chats.values())) if chat else None
        prompted = of_part or task
        if table.limit is not None:
            count = sum(1 for _ in islice(prompted.samples(lambda sample: True), table.limit))
            if count < table.limit:
                raise UsageError(
                    f"`limit` is {table.limit}: expected at most {count}, all of {spec}"
                )
        if table.record == "trace" and len({request.k == 0 for request in chosen}) < 2:
            raise UsageError(
                "`record` trace: expected `method` ars,sps, since the drafts of sps are traced "
                "along the texts of ars"
            )
        numbers = {name: getattr(table, name) for name in COUNTS}
        part = TaskPart(spec=spec, task=prompted, cells=(), **numbers)
        yield PartRequest(part, chosen, table.record == "trace")


def read_tables(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an experiment file's top level and `[[part]]` tables, or [{}]; SpsError: unusable."""
    tables = read_toml(path, "an experiment in TOML")
    parts = tables.pop("part", [{}])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UsageError(f"{path}: part is no list of tables: expected [[part]]")
    return tables, parts


def task_in_chat(
    task: Task, spec: Spec, chat: str, facts: ModelFacts, model: ModelSpec
) -> Task | None:
    """Return the task as a model is asked it in its template; None: it is given the text alone.

    `chat` is `off`; `on`, whatever the model (UsageError: a task without instructions); or `auto`,
    where task and model both have to know how, and a log line says so.
    """
    asking = None if chat == "off" else task.instruct()
    if chat == "on":
        return asking or _without_instructions(spec)
    if asking is None or not facts.template(model):
        return None
    log.info(f"{spec}: prompts are put into the chat template of {model} (`chat` off: plain text)")
    return asking


def _without_instructions(spec: Spec) -> Task:
    raise UsageError(
        f"`chat` on with {spec}: expected a task with instructions for chat models. Leave "
        "`chat` out"
    )

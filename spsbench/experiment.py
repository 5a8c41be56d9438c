"""An experiment: tables of options expanded to tasks and cells."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spsbench.config import K_MAX, check, make_cell, parse
from spsbench.errors import UsageError
from spsbench.options import METHODS, Options
from spsbench.parts import part
from spsbench.ranges import parse_range
from spsbench.results import Cell, Spec
from spsbench.tasks.task import Task

SETTINGS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    # Chen et al. 2023, Table 1: the sampling of each task
    "nucleus": {"xsum": {"top_p": 0.8}, "humaneval": {"top_p": 0.95, "temperature": 0.8}},
    "greedy": {"xsum": {"temperature": 0.0}, "humaneval": {"temperature": 0.0}},
}
DATA: Mapping[str, str] = {"xsum": "data", "jsonl": "path"}
"""Task -> the argument that `--data` means."""
SYNTHETIC = "synthetic:alpha=0.8"  # where there is no text to be right about


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The cells of one task, and how many samples of it each gets."""

    spec: Spec
    task: Task
    cells: tuple[Cell, ...]
    limit: int | None
    samples: int
    repeats: int

    def described(self) -> dict[str, Any]:
        """What a manifest keeps of it."""
        return {
            "task": str(self.spec),
            "title": self.task.title,
            "prompt_version": self.task.prompt_version,
            "metrics": list(self.task.metrics),
            "limit": self.limit,
            "samples": self.samples,
            "repeats": self.repeats,
            "cells": [cell.id for cell in self.cells],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Parts run one after the other into one folder."""

    parts: tuple[Part, ...]
    seed: int = 0
    warmup: int = 1  # prompts of each cell run before anything is timed
    threads: int | None = None
    title: str = ""

    @property
    def cells(self) -> list[Cell]:
        """Every cell once, in order."""
        return list({cell.id: cell for part in self.parts for cell in part.cells}.values())

    def described(self) -> dict[str, Any]:
        """What a manifest keeps of it."""
        return {
            "title": self.title,
            "seed": self.seed,
            "warmup": self.warmup,
            "threads": self.threads,
            "parts": [part.described() for part in self.parts],
        }


def plan(
    tables: Sequence[Options],
    *,
    seed: int = 0,
    warmup: int = 1,
    threads: int | None = None,
    title: str = "",
) -> Experiment:
    """Make the tasks and expand the tables; reads data, loads no model.

    Raises:
        UsageError: an unknown task or argument, or a value out of range.
        SpsError: data that is missing or cannot be used.
    """
    check(warmup >= 0, "--warmup", warmup, "0 or more")
    tasks: dict[Spec, Task] = {}
    parts = []
    for table in tables:
        spec = task_spec(table)
        if spec not in tasks:
            tasks[spec] = part("tasks", spec, {})
        parts.append(expand(table, spec, tasks[spec], seed=seed))
    return Experiment(parts=tuple(parts), seed=seed, warmup=warmup, threads=threads, title=title)


def task_spec(table: Options) -> Spec:
    """The task with `--data` as its argument.

    Raises:
        UsageError: a task that takes no data, or data named twice.
    """
    spec = parse("task", table.task)
    if table.data is None:
        return spec
    name = DATA.get(spec.name)
    if name is None:
        raise UsageError(f"--data with {spec.name}: expected one of {', '.join(DATA)} with it")
    if name in dict(spec.args):
        raise UsageError(f"--data {table.data} with {spec}: expected the data named once")
    return replace(spec, args=(*spec.args, (name, table.data)))


def expand(table: Options, spec: Spec, task: Task, *, seed: int) -> Part:
    """The cells of one table: every combination of its lists.

    Raises:
        UsageError: a value out of range.
    """
    for flag, value in (("--samples", table.samples), ("--repeats", table.repeats)):
        check(value >= 1, flag, value, "1 or more")
    check(table.limit is None or table.limit >= 1, "--limit", table.limit, "1 or more")
    new = table.max_new_tokens
    check(new is None or new >= 1, "--max-new-tokens", new, "1 or more")
    cells: dict[str, Cell] = {}
    for sampling in samplings(table, spec.name):
        arms = itertools.product(table.target, table.engine, table.decoder, drafts(table, spec))
        for target, engine, decoder, drafting in arms:
            cell = make_cell(
                target=target,
                engine=engine,
                max_new_tokens=task.max_new_tokens if new is None else new,
                stop=task.stop,
                seed=seed,
                device=table.device,
                dtype=table.dtype,
                revision=table.revision,
                draft_revision=table.draft_revision if drafting.get("draft") else None,
                **sampling,
                **drafting,
            )
            cell = replace(
                cell,
                task=spec,
                prompt_version=task.prompt_version,
                decoder=parse("--decoder", decoder),
                random_weights=table.random_weights,
            )
            cells.setdefault(cell.id, cell)
    return Part(
        spec=spec,
        task=task,
        cells=tuple(cells.values()),
        limit=table.limit,
        samples=table.samples,
        repeats=table.repeats,
    )


def samplings(table: Options, task: str) -> list[dict[str, Any]]:
    """Temperature and top-p of each setting; the paper's by name, or the ones given."""
    given = {
        name: value
        for name, value in (("temperature", table.temperature), ("top_p", table.top_p))
        if value is not None
    }
    if not table.setting:
        return [given]
    for name in table.setting:
        check(name in SETTINGS, "--setting", name, " or ".join(SETTINGS))
    if given:
        raise UsageError("--setting with --temperature or --top-p: expected one of the two")
    plain = {"nucleus": {"top_p": 0.95}, "greedy": {"temperature": 0.0}}
    return [dict(SETTINGS[name].get(task, plain[name])) for name in table.setting]


def drafts(table: Options, task: Spec) -> list[dict[str, Any]]:
    """How each arm drafts: K = 0 for ars, then the product of K, draft, drafter and verifier."""
    for name in table.method:
        check(name in METHODS, "--method", name, " or ".join(METHODS))
    try:
        ks = parse_range(table.k, low=0, high=K_MAX)
    except ValueError as error:
        raise UsageError(f"--k {error}") from error
    arms: list[dict[str, Any]] = [{"k": 0}] if "ars" in table.method else []
    if "sps" not in table.method:
        return arms
    lists: Sequence[Sequence[str | None]] = [
        table.draft or (None,),
        table.drafter or (None,),
        table.verifier or ((SYNTHETIC,) if task.name == "latency" else (None,)),
        table.schedule or (None,),
    ]
    for k, draft, drafter, verifier, schedule in itertools.product(ks, *lists):
        arms.append(
            {
                "k": k,
                "draft": draft,
                "drafter": drafter,
                "verifier": verifier,
                "schedule": schedule,
            }
        )
    return arms

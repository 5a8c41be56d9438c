"""An experiment: tables of options expanded to tasks and cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from spsbench.config import check, parse
from spsbench.errors import UsageError
from spsbench.grid import grid
from spsbench.options import Options
from spsbench.parts import part
from spsbench.results import Cell, Spec
from spsbench.tasks.task import Task

DATA: Mapping[str, str] = {"xsum": "data", "jsonl": "path"}
"""Task -> the argument that `--data` means."""


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
        parts.append(part_of(table, spec, tasks[spec], seed=seed))
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


def part_of(table: Options, spec: Spec, task: Task, *, seed: int) -> Part:
    """One table as a part.

    Raises:
        UsageError: a value out of range.
    """
    for flag, value in (("--samples", table.samples), ("--repeats", table.repeats)):
        check(value >= 1, flag, value, "1 or more")
    if table.limit is not None:
        check(table.limit >= 1, "--limit", table.limit, "1 or more")
        there = sum(1 for _ in islice(task.samples(lambda prompt: True), table.limit))
        check(there == table.limit, "--limit", table.limit, f"at most {there}, all of {spec}")
    return Part(
        spec=spec,
        task=task,
        cells=grid(table, spec, task, seed=seed),
        limit=table.limit,
        samples=table.samples,
        repeats=table.repeats,
    )

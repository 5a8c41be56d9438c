"""The cells of one table of options: every combination of its lists."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spsbench.config import K_MAX, check, make_cell, parse
from spsbench.errors import UsageError
from spsbench.options import METHODS, RECORDED, Options
from spsbench.ranges import parse_range
from spsbench.results import Cell, Spec
from spsbench.tasks.task import Task

SETTINGS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    # Chen et al. 2023, Table 1: the sampling of each task
    "nucleus": {"xsum": {"top_p": 0.8}, "humaneval": {"top_p": 0.95, "temperature": 0.8}},
    "greedy": {"xsum": {"temperature": 0.0}, "humaneval": {"temperature": 0.0}},
}
SYNTHETIC = "synthetic:alpha=0.8"  # where there is no text to be right about


def grid(table: Options, spec: Spec, task: Task, *, seed: int) -> tuple[Cell, ...]:
    """Each cell once: settings first, then models, engines and decoders, then ways of drafting.

    Raises:
        UsageError: a value out of range.
    """
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
                stop=() if table.ignore_end else task.stop,
                ignore_eos=table.ignore_end,
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
                decoder=decoding(decoder, table.record),
                random_weights=table.random_weights,
            )
            cells.setdefault(cell.id, cell)
    return tuple(cells.values())


def decoding(decoder: str, record: str) -> Spec:
    """The decoder, told what to record.

    Raises:
        UsageError: something unknown, or laws of a decoder that shows none.
    """
    check(record in RECORDED, "--record", record, " or ".join(RECORDED))
    spec = parse("--decoder", decoder)
    if record == "counts":
        return spec
    if spec.name != "native":
        raise UsageError(f"--record laws with --decoder {spec}: expected native, which shows them")
    return replace(spec, args=(*spec.args, ("laws", True)))


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

"""Existing traces and costs as inputs of a plan, and plans of them alone, without models."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.benchmark.trace_run import draft_identity, head_of
from spsbench.errors import DataError, MismatchError, UsageError
from spsbench.loop.drafter_context import Drawn
from spsbench.methods.resolve import plan_of, resolve
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.planning.candidates import SAMPLED, candidate_of, named, replayable
from spsbench.planning.forecast.batch_gains import forecast_batches
from spsbench.planning.forecast.recommendation import Forecasts, Measured, forecast_all
from spsbench.planning.measure import differing
from spsbench.planning.plan_folder import check_whole, incomplete, load
from spsbench.planning.report import Planned, real_rounds
from spsbench.settings.cell import WARP, Cell, WarpSettings, constant
from spsbench.settings.commands import Planning
from spsbench.settings.labels import drafting
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import parse_range
from spsbench.spec import K_MAX, Spec
from spsbench.store.atomic import replace_file
from spsbench.store.traces import DraftOf, Traces, read_traces, refuse

log = logging.getLogger(__name__)

APART = 64  # least distance of two contexts, in tokens
OF_TARGET = {"target": "target.id", "revision": "target.revision", "dtype": "target.dtype"}
OF_SAMPLING = {name: f"sampling.{name}" for name in WARP}


def read_whole_traces(paths: Sequence[Path]) -> Traces:
    """Read the traces in files, runs or plans.

    Raises:
        SpsError: as `read_traces`; a plan that has lost traces.
    """
    for path in paths:
        for folder in (path, path.parent):
            check_whole(folder)
    return read_traces(paths)


def check_head(
    traces: Traces, cells: Sequence[Cell], folders: Mapping[ModelSpec, Path], where: Path
) -> None:
    """Check that a trace has these models and this sampling.

    Raises:
        MismatchError: a field differs; names every such field.
    """
    if traces.head is not None:
        refuse(head_of(resolve(cells[0].auto_regressive), folders), traces.head, where)
    for cell in {drafting(cell): cell for cell in cells}.values():
        recorded = traces.drafts.get(drafting(cell))
        if recorded is not None:
            mine = DraftOf(
                name=recorded.name, identity=draft_identity(cell, folders), sampled=recorded.sampled
            )
            refuse(mine, recorded, where)


def check_trace_options(traces: Traces, options: Mapping[str, Any], planning: Planning) -> None:
    """Check requested options against the contents of a trace, without loading a model.

    Raises:
        MismatchError: a field differs; names every such field.
    """
    head = {} if traces.head is None else traces.head.identity
    usual = WarpSettings()
    there = {name: head.get(field) for name, field in OF_TARGET.items()}
    there |= {n: head.get(field, getattr(usual, n)) for n, field in OF_SAMPLING.items()}
    lines = [
        f"{field}: {options[name]!r}, there {there[name]!r}"
        for name, field in {**OF_TARGET, **OF_SAMPLING}.items()
        if options.get(name) is not None and options[name] != there[name]
    ]
    if traces.head is not None:
        chat, system = traces.head.chat, traces.head.system
        if planning.chat != "auto" and (planning.chat == "on") != chat:
            lines.append(f"work.chat: {planning.chat == 'on'}, there {chat}")
        if planning.system is not None and planning.system != system:
            lines.append(f"work.system: {planning.system!r}, there {system!r}")
    if lines:
        raise MismatchError.of(
            "another trace (`trace`): expected one of what was asked. Leave the options out, or "
            "record it anew",
            lines,
        )


def cells_of_trace(
    traces: Traces, costs: Costs, options: Mapping[str, Any], planning: Planning
) -> list[Cell]:
    """Return the candidates for which both a trace and a table of costs exist.

    Args:
            options: `drafter`, `draft`, `verifier` and `schedule` filter the candidates; other
            options are checked.

    Raises:
        UsageError: K out of range, or no common candidate.
        MismatchError: the trace contradicts the options.
    """
    check_trace_options(traces, options, planning)
    try:
        lookaheads = parse_range(planning.k, low=1, high=K_MAX)
    except ValueError as error:
        raise UsageError(f"`k` {error}") from error
    cells: list[Cell] = []
    for name, draft in traces.drafts.items():
        if name not in costs.arms or not chosen(draft, options):
            continue
        plan = plan_of(Spec.parse(draft.identity["drafter"].partition(" ")[0]))
        usual = SAMPLED if plan.drawn is Drawn.IID else ("match",)
        for rule in options.get("verifier") or usual:
            depths = [constant(k) for k in lookaheads]
            several = options.get("schedule") or ()
            depths += [Spec.parse(str(depth)) for depth in several]
            cells += [resolve(cell(traces, draft, str(rule), depth)) for depth in depths]
    if not cells:
        names = ", ".join(n for n in traces.drafts if n in costs.arms) or "none"
        raise UsageError(
            f"nothing to compare: expected a draft that trace and costs both have ({names}). The "
            f"trace has {', '.join(traces.drafts)}; the costs have {', '.join(costs.arms)}"
        )
    return cells


def chosen(draft: DraftOf, options: Mapping[str, Any]) -> bool:
    """Return whether a draft is among the named drafts; True if no draft is named."""
    drafts, drafters = options.get("draft") or (), options.get("drafter") or ()
    if not drafts and not drafters:
        return True
    model = draft.identity.get("id")
    return model in drafts or draft.identity["drafter"] in map(str, drafters)


def cell(traces: Traces, draft: DraftOf, rule: str, depth: Spec) -> Cell:
    """Return the cell of a trace, from the fields that the trace has."""
    head = {} if traces.head is None else traces.head.identity
    identity, drafter = draft.identity, Spec.parse(draft.identity["drafter"].partition(" ")[0])
    target = ModelSpec(head["target.id"], head.get("target.revision"))
    model = None
    if "id" in identity:
        model = ModelSpec(
            identity["id"], identity.get("revision"), dtype=identity.get("dtype", "auto")
        )
    if target.dtype != head.get("target.dtype", "auto"):
        target = ModelSpec(target.id, target.revision, dtype=head["target.dtype"])
    return Cell(
        target=target,
        draft=model,
        drafter=drafter,
        verifier=Spec.parse(rule),
        schedule=depth,
        chat=traces.head is not None and bool(traces.head.chat),
        system="" if traces.head is None else traces.head.system,
        **{name: head[field] for name, field in OF_SAMPLING.items() if field in head},
    )


def check_priced(names: Sequence[str], costs: Costs, where: str) -> None:
    """Check that a table of costs has everything to be priced.

    Raises:
        DataError: an entry is missing.
    """
    lacking = [name for name in names if name not in costs.arms]
    if lacking:
        raise DataError(
            f"no costs of {', '.join(lacking)} ({where}): expected those of every draft. It has "
            f"{', '.join(costs.arms)}. Measure them: leave `costs` out"
        )


def forecasts_of(
    cells: Iterable[Cell],
    traces: Traces,
    costs: Costs,
    new_prompts: int | None,
    notify: Callable[[int, int], None] = lambda done, total: None,
) -> Forecasts:
    """Return the forecasts of the cells whose rule and draft the traces can predict.

    Args:
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced.
        notify: is called with the candidates done and all of them.

    Raises:
        DataError: the costs lack a candidate.
    """
    traced = {name: (draft, traces.of(name)) for name, draft in traces.drafts.items()}
    candidates = map(candidate_of, filter(replayable, cells))
    return forecast_all(candidates, traced, costs, notify, new_prompts)


def open_plan(
    planning: Planning, options: Mapping[str, Any], folder: Path | None = None
) -> Planned:
    """Return a plan of what was measured before: that of a folder, or of traces and costs.

    Hypothetical factors of `planning` change the costs; figures of real rounds are then left out.

    Args:
        options: `drafter`, `draft`, `verifier` and `schedule` filter the candidates of traces;
            other options are checked.

    Raises:
        SpsError: files are missing, damaged, or do not match; an unfinished plan.
    """
    measured_figures: dict[str, Measured] = {}
    reasons: dict[str, str] = {}
    todo, unmeasured = "", planning.unmeasured
    new_prompts: int | None = planning.held_back
    if folder is None:
        paths = [Path(path) for path in planning.trace]
        traces = read_whole_traces(paths)
        if planning.costs is None:
            raise DataError("no costs: expected a table of them. Name one with `costs`")
        costs = read_costs(planning.costs).scaled(**planning.factors)
        cells = named(cells_of_trace(traces, costs, options, planning))
        about = f"{', '.join(map(str, paths))} under {planning.costs}"
    else:
        plan_file = load(folder)
        check_whole(folder)
        todo = incomplete(folder, plan_file)
        costs_path = folder / plan_file.costs
        if not costs_path.exists() or (todo and plan_file.confirm is None):
            missing_step = todo or "Go on with it: `resume`"
            raise DataError(
                f"no forecasts yet ({folder}): expected a plan that was finished. {missing_step}"
            )
        traces = read_traces([folder / name for name in plan_file.texts])
        costs = read_costs(costs_path).scaled(**{**plan_file.factors, **planning.factors})
        cells = named(plan_file.cells)
        if plan_file.confirm is not None and not planning.factors and not todo:
            confirmed = folder / plan_file.confirm
            measured_figures, reasons = real_rounds(confirmed, list(cells.values()))
        unmeasured = unmeasured or "the plan was made without real rounds"
        new_prompts = plan_file.new_prompts
        about = f"{plan_file.identity['target.id']}, {plan_file.identity['task']}"
    forecasts = forecasts_of(cells.values(), traces, costs, new_prompts)
    return Planned(
        folder=folder,
        forecasts=forecasts,
        batches=forecast_batches(planning.batch_sizes(), forecasts, cells),
        cells=cells,
        measured=measured_figures,
        missing=reasons,
        unmeasured=unmeasured,
        about=about,
        every=planning.every,
        incomplete=todo,
    )


def measured_costs(
    path: Path, setting: Mapping[str, Any], drafts: Sequence[str], measure: Callable[[], Costs]
) -> Costs:
    """Return the costs in the file of a plan, measured if the file lacks them.

    Costs that contradict each other are measured once more.

    Args:
        setting: of the machine and the models now; costs of another setting are measured again.
        drafts: names of the drafts that must have costs.
    """
    if path.exists():
        costs = read_costs(path)
        lacking = [name for name in dict.fromkeys(drafts) if name not in costs.arms]
        if not (changed := [*differing(setting, costs.setting), *lacking]):
            return costs
        log.info(f"note: costs are measured again, of another setting ({', '.join(changed)})")
    costs = measure()
    if contradictions := costs.contradictions():
        log.info(
            f"note: the costs contradict each other, and are measured again: {contradictions[0]}"
        )
        again = measure()
        if len(again.contradictions()) <= len(contradictions):
            costs = again
    replace_file(path, dumps(costs).encode("ascii"))
    return read_costs(path)


def contexts_of(traces: Traces) -> list[int]:
    """Return the shortest prompt and the longest text, in tokens; one value where both are near."""
    low = min(text.prompt_tokens for text in traces.texts.values())
    high = max(text.prompt_tokens + len(text.q) for text in traces.texts.values())
    return [low, high] if high - low > APART else [(low + high) // 2]

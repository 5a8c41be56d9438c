"""Plans of what was measured before: the folder of a plan, or traces and costs in files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.benchmark.trace_run import draft_identity, trace_source
from spsbench.errors import DataError, MismatchError, UsageError
from spsbench.loop.drafter_context import Drawn
from spsbench.methods.resolve import plan_of, resolve
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import read_costs
from spsbench.planning.candidates import SAMPLED, replayable, simulate
from spsbench.planning.forecast.forecasts import Forecasts, forecast_all
from spsbench.planning.forecast.predictions import tau_of
from spsbench.planning.forecast.recommendation import Measured
from spsbench.planning.plan_folder import (
    COSTS,
    PlanRecord,
    check_plan_records,
    incomplete,
    load_plan,
)
from spsbench.planning.report import Planned
from spsbench.reports.run_tables import run_table
from spsbench.settings.cell import DISTRIBUTION, Cell, CellRequest, constant
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import LISTS, Planning
from spsbench.settings.method import Drafting, Method
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.traces import DraftOf, Traces, TraceSource, read_traces, refuse

OF_SAMPLING = {name: f"sampling.{name}" for name in DISTRIBUTION}
OF_HEAD = {
    "target": "target.id",
    "revision": "target.revision",
    "dtype": "target.dtype",
    **OF_SAMPLING,
}
READ = {*OF_HEAD, *LISTS, "trace", "costs", "k", "held_back", "chat", "system", "offline"}


def open_planned(folder: Path, planning: Planning) -> Planned:
    """Return the plan in a folder, read from its files; no model is loaded.

    `planning` says how to show it; its `factors` of the costs replace those of the plan, by part.
    With factors, and where the plan was stopped, there are no real rounds. DataError: no forecasts
    yet, or runs that lost records. SpsError: plan, traces or costs are missing or damaged.
    """
    record = load_plan(folder)
    check_plan_records(folder)
    todo = incomplete(folder, record)
    if not (folder / record.costs).exists() or (todo and record.confirm is None):
        raise DataError(
            f"no forecasts yet ({folder}): expected a plan that was finished. "
            f"{todo or 'Go on with it: `resume`'}"
        )
    traces = read_traces([folder / name for name in record.texts])
    costs = read_costs(folder / record.costs).scaled(**{**record.factors, **planning.factors})
    forecasts = forecasts_of(record, traces, costs)
    measured = None if planning.factors or todo else record.confirm
    rounds = real_rounds(folder, record.cells, measured)
    return Planned(record, planning, forecasts, *rounds, folder, todo)


def plan_of_files(planning: Planning, options: Mapping[str, Any]) -> Planned:
    """Return the plan of traces and a table of costs in files, without real rounds or a folder.

    `planning` names the files (`trace`, one or more; `costs`), the K, and factors of the costs.
    `drafter`, `draft`, `verifier` and `schedule` in `options` choose candidates; others must equal
    what the trace records, else MismatchError. UsageError: no candidate. SpsError: unusable files.
    """
    traces = read_whole_traces(planning.trace)
    costs = read_costs(Path(planning.costs or COSTS)).scaled(**planning.factors)
    record = PlanRecord(
        identity={"title": f"{', '.join(planning.trace)} under {planning.costs}"},
        cells=cells_of_trace(traces, costs, options, planning),
        new_prompts=planning.held_back,
    )
    return Planned(record, planning, forecasts_of(record, traces, costs))


def forecasts_of(
    record: PlanRecord,
    traces: Traces,
    costs: Costs,
    notify: Callable[[int, int], None] = lambda done, total: None,
) -> Forecasts:
    """Return forecasts of the record's methods by traces and costs; `notify` is told the progress.

    Left out are methods whose rule cannot be replayed or whose draft was not traced for their K.
    """
    traced = {name: (draft, traces.of(name)) for name, draft in traces.drafts.items()}
    methods = map(Method.of, filter(replayable, record.cells))
    return forecast_all(methods, traced, costs, notify, record.new_prompts, simulate)


def real_rounds(
    folder: Path, cells: Sequence[Cell], confirm: str | None
) -> tuple[dict[Method, Measured], dict[Method, str]]:
    """Return method -> figures of real rounds, and method -> the reason why it has none.

    `confirm` is the name of the run of real rounds in `folder`, the plan's; None: both are empty.
    Methods not run, or of no cell in `cells`, are in neither. SpsError: an unreadable run or trace.
    """
    figures: dict[Method, Measured] = {}
    reasons: dict[Method, str] = {}
    if confirm is None:
        return figures, reasons
    run, methods = folder / confirm, {Method.of(cell) for cell in cells}
    traces = read_traces([run]) if any(run.glob("traces-*.jsonl")) else Traces()
    for row in run_table(run).whole:
        if (method := Method.of(row.cell)) not in methods:
            continue
        gained, tau, ms = row.speedup, row.block_efficiency, row.mean_token_time_ms
        draft, texts = traces.drafts.get(method.drafting), traces.of(method.drafting)
        if gained is not None and ms and tau:
            replays = texts and draft and draft.replays(method.k) and replayable(row.cell)
            expected = tau_of(method, draft, texts, simulate) if draft and replays else None
            figures[method] = Measured(gained, tau, ms, expected)
        elif not row.n:
            reasons[method] = f"all of its {row.failures} generations failed"
        elif not row.timed + row.loaded:
            reasons[method] = "all of its timings are of first calls"
        elif gained is None:
            reasons[method] = "no prompt was timed with it and with ArS"
    return figures, reasons


def read_whole_traces(names: Sequence[str]) -> Traces:
    """Read traces of files, runs or plans as one; SpsError: unusable, or a plan lost records."""
    paths = [Path(name) for name in names]
    for path in paths:
        for folder in (path, path.parent):
            check_plan_records(folder)
    return read_traces(paths)


def check_head(
    traces: Traces, cells: Sequence[Cell], folders: Mapping[ModelSpec, Path], where: Path
) -> None:
    """Raise MismatchError where traces are of other models, versions or sampling than the cells.

    `folders` has the folder of each model, and `where` names the traces in the error. Drafts that
    only one side has are no error.
    """
    if traces.head is not None:
        refuse(trace_source(cells[0].auto_regressive, folders), traces.head, where)
    for drafting, cell in {Drafting.of(cell): cell for cell in cells}.items():
        if (recorded := traces.drafts.get(drafting)) is not None:
            refuse(replace(recorded, identity=draft_identity(cell, folders)), recorded, where)


def head_fields(traces: Traces) -> dict[str, Any]:
    """Return the fields of target, sampling and chat that a trace has; sampling else by default."""
    head = traces.head or TraceSource({})
    usual = {field: OF_CELL[name].default for name, field in OF_SAMPLING.items()}
    return {**usual, **head.identity, "work.chat": head.chat, "work.system": head.system}


def check_trace_options(traces: Traces, options: Mapping[str, Any], planning: Planning) -> None:
    """Raise MismatchError where `options`, or `planning` (chat, system), differ from a trace."""
    requested = {field: options.get(name) for name, field in OF_HEAD.items()}
    requested["work.chat"] = None if planning.chat == "auto" else planning.chat == "on"
    requested["work.system"] = planning.system
    recorded = head_fields(traces)
    lines = [
        f"{field}: {value!r}, there {recorded.get(field)!r}"
        for field, value in requested.items()
        if value is not None and value != recorded.get(field)
    ]
    if lines:
        raise MismatchError.of(
            "another trace (`trace`): expected one of what was asked. Leave the options out, or "
            "record it anew",
            lines,
        )


def cells_of_trace(
    traces: Traces, costs: Costs, options: Mapping[str, Any], planning: Planning
) -> list[Cell]:
    """Return resolved cells of each traced draft with costs: for each rule, Ks, then schedules.

    `drafter` and `draft` in `options`, if any, choose drafts: one of the two is enough. `verifier`
    and `schedule` name rules and schedules. Rules are else `SAMPLED` for sampled chains, `match`
    for others. MismatchError: as `check_trace_options`. UsageError: an invalid cell, or none.
    """
    check_trace_options(traces, options, planning)
    depths = [constant(k) for k in planning.k]
    depths += [Spec.parse(str(depth)) for depth in options.get("schedule") or ()]
    drafts, drafters = options.get("draft") or (), [*map(str, options.get("drafter") or ())]
    cells: list[Cell] = []
    for name, draft in traces.drafts.items():
        identity = draft.identity
        named = identity.get("id") in drafts or identity["drafter"] in drafters
        if name not in costs.arms or ((drafts or drafters) and not named):
            continue
        request = request_of(traces, draft)
        usual = SAMPLED if plan_of(request.drafter).drawn is Drawn.IID else ("match",)
        for rule in options.get("verifier") or usual:
            verifier = Spec.parse(str(rule))
            cells += [resolve(request.but(verifier=verifier, schedule=depth)) for depth in depths]
    if not cells:
        names = ", ".join(str(n) for n in traces.drafts if n in costs.arms) or "none"
        raise UsageError(
            f"nothing to compare: expected a draft that trace and costs both have ({names}). The "
            f"trace has {', '.join(map(str, traces.drafts))}; the costs have "
            f"{', '.join(map(str, costs.arms))}"
        )
    return cells


def request_of(traces: Traces, draft: DraftOf) -> CellRequest:
    """Return a request with a traced draft's models, drafter, chat and sampling; no rule or K."""
    fields, identity = head_fields(traces), draft.identity

    def model(recorded: Mapping[str, Any], prefix: str) -> ModelSpec:
        """Return the model whose fields have a prefix; its engine and device are the defaults."""
        adapter = recorded.get(f"{prefix}adapter", "")
        dtype, revision = recorded.get(f"{prefix}dtype", "auto"), recorded.get(f"{prefix}revision")
        return ModelSpec(recorded[f"{prefix}id"], revision, adapter=adapter, dtype=dtype)

    return CellRequest(
        target=model(fields, "target."),
        draft=model(identity, "") if "id" in identity else None,
        drafter=Spec.parse(identity["drafter"].partition(" ")[0]),
        chat=fields["work.chat"],
        system=fields["work.system"],
        **{name: OF_CELL[name].convert(fields[at]) for name, at in OF_SAMPLING.items()},
    )

"""Traces and costs that were made before: what they are of, and whether that fits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.benchmark.traced_of import draft_identity, head_of
from spsbench.errors import DataError, MismatchError, UsageError
from spsbench.loop.drafter_context import Drawn
from spsbench.methods.resolve import plan_of, resolve
from spsbench.planning.arms import SAMPLED
from spsbench.planning.folder import check_whole
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.traces import DraftOf
from spsbench.settings.cell import WARP, Cell, WarpSettings, constant
from spsbench.settings.cell_from_options import K_MAX
from spsbench.settings.labels import drafting
from spsbench.settings.models import Models, ModelSpec
from spsbench.settings.options import parse_range
from spsbench.spec import Spec
from spsbench.store.traces import Traces, read_traces, refuse, refuse_draft

OF_TARGET = {"target": "target.id", "revision": "target.revision", "dtype": "target.dtype"}
OF_SAMPLING = {name: f"sampling.{name}" for name in WARP}


def traces_given(paths: Sequence[Path]) -> Traces:
    """The traces in files, runs or plans.

    Raises:
        SpsError: as `read_traces`; a plan that has lost a part of them.
    """
    for path in paths:
        for folder in (path, path.parent):
            check_whole(folder)
    return read_traces(paths)


def check_head(
    traces: Traces, cells: Sequence[Cell], folders: Mapping[ModelSpec, Path], where: Path
) -> None:
    """Check that a trace is of these models under this sampling.

    Raises:
        MismatchError: it is not; names every field that differs.
    """
    if traces.head is not None:
        refuse(head_of(resolve(cells[0].auto_regressive), folders), traces.head, where)
    for cell in {drafting(cell): cell for cell in cells}.values():
        known = traces.drafts.get(drafting(cell))
        if known is not None:
            mine = DraftOf(
                name=known.name, identity=draft_identity(cell, folders), sampled=known.sampled
            )
            refuse_draft(mine, known, where)


def check_asked(traces: Traces, asked: Mapping[str, Any]) -> None:
    """Check what was asked by name against what a trace is of; no model is looked at.

    Raises:
        MismatchError: it is of another one; names every field that differs.
    """
    head = {} if traces.head is None else traces.head.identity
    usual = WarpSettings()
    there = {name: head.get(field) for name, field in OF_TARGET.items()}
    there |= {n: head.get(field, getattr(usual, n)) for n, field in OF_SAMPLING.items()}
    lines = [
        f"{field}: {asked[name]!r}, there {there[name]!r}"
        for name, field in {**OF_TARGET, **OF_SAMPLING}.items()
        if asked.get(name) is not None and asked[name] != there[name]
    ]
    if lines:
        raise MismatchError.of(
            "another trace (--trace): expected one of what was asked. Leave the options out, or "
            "record it anew",
            lines,
        )


def cells_of_trace(traces: Traces, costs: Costs, asked: Mapping[str, Any], ks: str) -> list[Cell]:
    """The candidates that a trace and a table of costs have between them.

    Args:
        asked: `drafter`, `draft`, `verifier` and `schedule`, to choose some; the rest is checked.

    Raises:
        UsageError: K out of range, or nothing that both have.
        MismatchError: the trace is of something else than what was asked.
    """
    check_asked(traces, asked)
    try:
        lookaheads = parse_range(ks, low=1, high=K_MAX)
    except ValueError as error:
        raise UsageError(f"--k {error}") from error
    found: list[Cell] = []
    for name, draft in traces.drafts.items():
        if name not in costs.arms or not chosen(draft, asked):
            continue
        plan = plan_of(Spec.parse(draft.identity["drafter"].partition(" ")[0]))
        usual = SAMPLED if plan.drawn is Drawn.IID else ("match",)
        for rule in asked.get("verifier") or usual:
            depths = [constant(k) for k in lookaheads]
            depths += [Spec.parse(str(each)) for each in asked.get("schedule") or ()]
            found += [resolve(cell(traces, draft, str(rule), depth)) for depth in depths]
    if not found:
        known = ", ".join(n for n in traces.drafts if n in costs.arms) or "none"
        raise UsageError(
            f"nothing to compare: expected a draft that trace and costs both have ({known}). The "
            f"trace has {', '.join(traces.drafts)}; the costs have {', '.join(costs.arms)}"
        )
    return found


def chosen(draft: DraftOf, asked: Mapping[str, Any]) -> bool:
    """Whether a draft is among those that were named, if any were."""
    drafts, drafters = asked.get("draft") or (), asked.get("drafter") or ()
    if not drafts and not drafters:
        return True
    model = draft.identity.get("id")
    return model in drafts or draft.identity["drafter"] in map(str, drafters)


def cell(traces: Traces, draft: DraftOf, rule: str, depth: Spec) -> Cell:
    """The cell that a trace is of, as far as it says."""
    head = {} if traces.head is None else traces.head.identity
    own, drafter = draft.identity, Spec.parse(draft.identity["drafter"].partition(" ")[0])
    target = ModelSpec(head["target.id"], head.get("target.revision"))
    model = None
    if "id" in own:
        model = ModelSpec(own["id"], own.get("revision"), dtype=own.get("dtype", "auto"))
    if Models(target, model).target.dtype != head.get("target.dtype", "auto"):
        target = ModelSpec(target.id, target.revision, dtype=head["target.dtype"])
    return Cell.of(
        target=target,
        draft=model,
        drafter=drafter,
        verifier=Spec.parse(rule),
        schedule=depth,
        **{name: head[field] for name, field in OF_SAMPLING.items() if field in head},
    )


def check_priced(names: Sequence[str], costs: Costs, where: str) -> None:
    """Check that a table of costs has what is to be priced.

    Raises:
        DataError: it lacks something.
    """
    lacking = [name for name in names if name not in costs.arms]
    if lacking:
        raise DataError(
            f"no costs of {', '.join(lacking)} ({where}): expected those of every draft. It has "
            f"{', '.join(costs.arms)}. Measure them: leave --costs out"
        )

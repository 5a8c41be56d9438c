"""Plans: whether to speculate and with what."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from spsbench.errors import UsageError
from spsbench.hardware.memory import importing_libraries
from spsbench.hardware.ranks import ranks
from spsbench.messages import ignore, takes_say
from spsbench.models.prepare import facts_of, heads_in, note_default_drafters, prepare_access
from spsbench.planning.fit import check_fit
from spsbench.plugins import make
from spsbench.settings.cell import CellRequest
from spsbench.settings.cell_from_options import chat_sampling, describe_defaults, fill
from spsbench.settings.commands import LISTS, PLAN, TASK, Planning
from spsbench.settings.execution import HERE
from spsbench.settings.experiment import may_need_hub, task_in_chat, task_spec
from spsbench.settings.grid import Sweep
from spsbench.settings.options import is_given, parse, takes
from spsbench.spec import Spec
from spsbench.store.traces import trace_files

if TYPE_CHECKING:
    from typing import Unpack

    from spsbench import PlanOptions
    from spsbench.planning.report import Planned

log = logging.getLogger(__name__)

SHOWN = {"batch", "draft_cost", "target_cost", "every"}  # options that a finished plan takes


@takes(*PLAN)
@takes_say
def plan(
    task: str | None = None,
    *,
    pair: Any = None,
    watch: Callable[[Any], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    fit: Spec | None = None,
    command: str = "",
    dry_run: bool = False,
    **options: "Unpack[PlanOptions]",
) -> "Planned | list[str] | None":
    """Predict whether speculation pays for a target, with what, and time the best.

    `plan("xsum", target="nano", draft=["nano-draft"], drafter=["model", "ngram"])`: options are
    those of `sps plan`. With `trace` and `costs` no model is loaded. What it makes is in a folder,
    survives a crash or kill, and is continued by `resume=True`.

    Args:
        task: source of the prompts; `prompts` names a file instead; None: `xsum:data=mini`.
        pair: loaded models; None: the models are loaded.
        say: receives each message for the user; None: messages go to `logging` only.
        watch: called with the progress, a `PlanProgress`, which prints as a line.
        stop: polled; true ends the plan early.
        fit: schedule for `fit_schedule` to fit on the traces; an invalid one is rejected before
            the traces are made.
        command: the command line that continues the plan; a stopped plan shows it.
        dry_run: return lines of what would be measured; nothing is written, no model is loaded.

    Returns:
        `answer`, `command`, `report`, `forecasts`; None if it was stopped; of a dry run its lines.

    Raises:
        SpsError: the message names the error and its remedy.
    """
    planning, candidates, place, workers, access = parse(options, *PLAN)
    chosen: dict[str, Any] = candidates.options
    if ranks().size > 1:
        raise UsageError("a plan over several ranks (torchrun): expected one. Leave torchrun out")
    if planning.trace and planning.costs is not None:
        from spsbench.planning.inputs import READ, plan_of_files

        unread = [f"`{n}`" for n, v in options.items() if n not in READ | SHOWN and is_given(v)]
        if task is not None or unread:
            what = "expected options that choose candidates, scale costs or show. Leave it out"
            raise UsageError(f"{[*unread, task][0]} with `trace` and `costs`: {what}")
        trace_files([Path(path) for path in planning.trace])
        if dry_run:
            return ["nothing would be measured: texts and costs are given (`trace`, `costs`)"]
        return plan_of_files(planning, chosen)
    if planning.trace:
        if workers.kind != HERE:
            raise UsageError("`trace` with `on`: expected texts to be made there. Leave one out")
        trace_files([Path(path) for path in planning.trace])
    if planning.prompts is not None:
        if task is not None:
            raise UsageError(f"{task} with `prompts`: expected one of the two. Leave one out")
        name = str(planning.prompts)
        with suppress(ValueError):  # raised for a name that is no number
            float(name)
            name = f"./{name}"
        task = f"jsonl:path={name}"  # whatever its name ends in
    table = Sweep(task=task or TASK)
    if pair is not None:
        access = pair.access
    facts = facts_of(access)
    heads = heads_in(chosen.get("draft") or (), chosen.get("draft_revision"), facts)
    requests = model_requests(chosen, heads)
    prepare_access(requests, access, may_need_hub(table))
    spec = task_spec(table)
    prompted_task, target = make("tasks", spec), requests[0].target
    asking = task_in_chat(prompted_task, spec, planning.chat, facts, target)
    if planning.system is not None and asking is None:
        raise UsageError("`system` without a chat: expected a model with a template and `chat` on")
    if asking is not None:
        prompted_task = asking
        if applied := chat_sampling(target, facts, chosen):
            log.info(describe_defaults(target, applied))
            chosen |= applied
    for name in ("max_new_tokens", "stop"):
        chosen.setdefault(name, getattr(prompted_task, name))

    with importing_libraries():
        from spsbench.methods.resolve import resolve
        from spsbench.planning.candidates import candidate_cells, sampled_traces
        from spsbench.planning.planner import Planner

    model_cache = (pair or shared_models(access)).model_cache
    cells = candidate_cells(
        chosen,
        planning.k,
        resolver=partial(resolve, vocabularies=model_cache.vocabularies),
        heads=heads,
    )
    note_default_drafters(cells, chosen)
    if fit is not None and not planning.trace:
        check_fit(fit, sampled_traces(cells))
    system = "" if asking is None else planning.system or ""
    planner = Planner(
        cells=[cell.but(chat=asking is not None, system=system) for cell in cells],
        spec=spec,
        task=prompted_task,
        planning=planning,
        place=place,
        access=access,
        model_cache=model_cache,
        watch=watch,
        stop=stop,
        command=command,
        workers=workers,
    )
    return [*planner.outlook()] if dry_run else planner.run()


def shared_models(access: Any) -> SimpleNamespace:
    """Return a `pair` for several plans: a model cache that loads what a plan needs."""
    with importing_libraries():
        from spsbench.models.cache import ModelCache
    return SimpleNamespace(access=access, model_cache=ModelCache(access))


def open_plan(folder: Path, **options: Any) -> Any:
    """Return the `Planned` of a folder, without models; `options` change how it is shown.

    UsageError: an option that is none of `SHOWN`, or a value it cannot have. DataError: no
    forecasts yet. SpsError: no plan, or a damaged one.
    """
    if others := sorted(options.keys() - SHOWN):
        raise UsageError(
            f"`{'`, `'.join(others)}` with the plan {folder}: expected options that only change "
            "how it is shown, such as `draft_cost`, `every`, `plot`. Leave the rest out"
        )

    from spsbench.planning import inputs

    return inputs.open_planned(folder, *parse(options, Planning))


def model_requests(options: Mapping[str, Any], heads: Mapping[str, str]) -> list[CellRequest]:
    """Return a request for each draft, or one without draft, for checks without torch.

    Lists (`LISTS`) other than `draft` are left out, and without drafts all options of drafts too.
    `heads`: draft -> the drafter that reads it. UsageError: options that contradict each other.
    """
    plain = {name: value for name, value in options.items() if name not in LISTS}
    of_target = {name: value for name, value in plain.items() if not name.startswith("draft_")}
    of_heads = {draft: {"drafter": Spec(name)} for draft, name in heads.items()}
    drafts = options.get("draft") or ()
    requests = [fill({**plain, "draft": draft, **of_heads.get(draft, {})}) for draft in drafts]
    return requests or [fill(of_target)]

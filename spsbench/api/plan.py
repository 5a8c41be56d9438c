"""`spsbench.planning`: whether to speculate, with what, and what it gains."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.api.bench import hands_of
from spsbench.api.fit import check_fit
from spsbench.api.heads import heads_in
from spsbench.api.load import access_of
from spsbench.api.prepare import prepare_cells
from spsbench.errors import UsageError
from spsbench.messages import LIBRARIES, announce_if_slow, ignore, takes_say
from spsbench.models.chat import sampling_lookup, template_lookup
from spsbench.plugins import make
from spsbench.settings.cell_from_options import OF_CELL, make_cell
from spsbench.settings.commands import LISTS, TASK, Planning
from spsbench.settings.execution import HERE, Crew, Place
from spsbench.settings.experiment import may_need_hub, task_spec
from spsbench.settings.options import convert_options, take_record
from spsbench.settings.sweep import Sweep, describe_defaults, in_chat, own_defaults
from spsbench.spec import Spec
from spsbench.store.traces import check_traces

log = logging.getLogger(__name__)


@takes_say
def plan(
    task: str | None = None,
    *,
    pair: Any = None,
    watch: Callable[[Any], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    fit: Spec | None = None,
    **asked: Any,
) -> Any:
    """Find out whether speculation pays for a target, with what, and measure the best.

    `plan("xsum", target="nano", draft=["nano-draft"], drafter=["model", "ngram"])`: options are
    those of `sps plan`. With `trace` and `costs` no model is loaded. What it makes is in a folder,
    survives whatever happens, and is gone on with by `resume=True`.

    Args:
        task: whose prompts; `prompts` names a file instead.
        pair: whose models are used; without one they are loaded.
        say: receives each line that a user should know; without it they go to `logging` alone.
        watch: is told how far it is.
        stop: asked now and then whether to end.
        fit: what `library.fit.fit_schedule` is to fit on the traces; refused before they are made
            where it cannot be.

    Returns:
        A `spsbench.planning.planned.Planned`: `answer`, `command`, `report`, `outlook`; None if
        it was stopped.

    Raises:
        SpsError: with a line that says what was wrong and what to do.
    """
    access, rest = access_of(asked)
    place = take_record(Place, rest)
    crew = take_record(Crew, rest)
    planning = take_record(Planning, rest)
    if planning.trace and crew.kind != HERE:
        raise UsageError("--trace with --on: expected texts to be made there. Leave one out")
    chosen: dict[str, Any] = options(rest)
    if planning.trace:
        check_traces([Path(each) for each in planning.trace])
    if planning.prompts is not None:
        if task is not None:
            raise UsageError(f"{task} with --prompts: expected one of the two. Leave one out")
        task = f"jsonl:path={planning.prompts}"
    if planning.trace and planning.costs is not None:
        if task is not None:
            raise UsageError(f"{task} with --trace and --costs: expected no prompts")
        return from_files(planning, chosen)
    table = Sweep(task=task or TASK)
    cells = rough(chosen)
    if pair is not None:
        access = pair.access
    prepare_cells(cells, access, may_need_hub(table))
    spec = task_spec(table)
    plain, target = make("tasks", spec), cells[0].models.target
    asking = in_chat(
        plain,
        spec,
        [target],
        chat=planning.chat,
        system=planning.system,
        templates=template_lookup(offline=access.offline, allow_pickle=access.allow_pickle),
    )[target]
    if asking is not None:
        own = sampling_lookup(offline=access.offline, allow_pickle=access.allow_pickle)
        if applied := own_defaults(target, own, chosen):
            log.info(describe_defaults(target, applied))
            chosen |= applied
    made = plain if asking is None else asking
    for name in ("max_new_tokens", "stop"):
        chosen.setdefault(name, getattr(made, name))

    with announce_if_slow(LIBRARIES):
        from spsbench.methods.resolve import settled
        from spsbench.models.cache import ModelCache
        from spsbench.planning.arms import cells_of, sampled
        from spsbench.planning.conduct import Planner

    model_cache = pair.model_cache if pair is not None else ModelCache.under(access)
    cells = cells_of(
        chosen,
        planning.k,
        settle=lambda cell: settled(cell, model_cache.vocabularies),
        heads=heads_in(chosen.get("draft") or (), chosen.get("draft_revision"), access),
    )
    if fit is not None and not planning.trace:
        check_fit(fit, sampled(cells))
    return Planner(
        cells=cells,
        spec=spec,
        task=made,
        planning=planning,
        place=place,
        access=access,
        model_cache=model_cache,
        chat=asking is not None,
        system="" if asking is None else planning.system or "",
        watch=watch,
        stop=stop,
        hands=hands_of(crew),
    ).run()


def drawn_again(folder: Path, **asked: Any) -> Any:
    """A plan from its folder, without models: with `draft_cost` and others, as if they were so.

    Raises:
        SpsError: no plan, or one that is damaged.
    """
    planning = take_record(Planning, asked)
    if asked:
        raise UsageError(
            f"{', '.join(asked)} with the plan {folder}: expected what draws it again, such as "
            "--draft-cost, --every, --plot. Leave the rest out"
        )

    from spsbench.planning.again import again

    return again(folder, planning)


def costs_of(folder: Path) -> Path:
    """The table of costs that a plan stands on.

    Raises:
        MissingError, DataError: no plan, or one that is damaged.
    """
    from spsbench.planning.folder import load

    return folder / load(folder).costs


def from_files(planning: Planning, asked: Mapping[str, Any]) -> Any:
    """A plan from a trace and a table of costs."""
    from spsbench.planning.again import of_files

    return of_files(planning, asked)


def options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options of cells in their types; those of `LISTS` as lists.

    Raises:
        UsageError: an unknown one, or a value of another type or out of range.
    """
    lists = {
        name: [OF_CELL[name].convert(each) for each in several(asked[name])]
        for name in LISTS
        if asked.get(name) is not None
    }
    plain = {name: value for name, value in asked.items() if name not in LISTS}
    return {**convert_options(OF_CELL, plain), **lists}


def several(value: Any) -> Sequence[Any]:
    """One value as a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def rough(asked: Mapping[str, Any]) -> list[Any]:
    """Cells that name all models, for the checks before torch may be imported."""
    plain = {name: value for name, value in asked.items() if name not in LISTS}
    of_target = {name: value for name, value in plain.items() if not name.startswith("draft_")}
    cells = [make_cell(**plain, draft=draft) for draft in asked.get("draft") or ()]
    return cells or [make_cell(**of_target)]

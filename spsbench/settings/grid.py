"""Cells of a table of options: every combination of its lists, each once.

`in_chat` decides which models are asked in their chat templates, `own_defaults` with what sampling.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spsbench.errors import UsageError
from spsbench.settings.cell import ELSEWHERE, SAMPLING_FIELDS, SEED_MAX, Cell
from spsbench.settings.cell_from_options import DRAFT, OF_CELL, make_cell, own_copy
from spsbench.settings.constraint import check_ends
from spsbench.settings.models import ModelSpec
from spsbench.settings.options import convert_options, parse_range
from spsbench.settings.sweep import MAX_ROWS, Sweep
from spsbench.settings.task import Task
from spsbench.spec import K_MAX, Spec

log = logging.getLogger(__name__)

OwnSampling = Callable[[ModelSpec], Mapping[str, Any]]
"""The sampling that a model names itself, in the words of its file."""

OF_DRAFTING = (*(setting.name for setting in DRAFT.values()), "drafter", "verifier", "schedule")
MAX_CELLS = 10_000  # cells of one table
WARP_OF_SETTINGS = ("temperature", "top_p")  # what a setting of the paper decides


def grid(
    table: Sweep,
    spec: Spec,
    task: Task,
    *,
    seed: int,
    chat: bool = False,
    own_sampling: OwnSampling = lambda model: {},
) -> tuple[Cell, ...]:
    """Each cell once: settings first, then models, engines and decoders, then ways of drafting.

    Args:
        chat: the task is asked in the model's template.
        own_sampling: the sampling that a model names itself, for what a chat leaves open.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    cells: dict[str, Cell] = {}
    for new in table.cells.get("max_new_tokens", ()):
        if new < 1:
            raise UsageError(f"`max_new_tokens` is {new}: expected 1 or more")
    ends: dict[str, Any] = {"stop": task.stop}
    if table.ignore_end:
        ends = {"ignore_eos": True}
    plain = {"max_new_tokens": task.max_new_tokens, **ends}
    bases = table.bases or base_cells(table)
    for sampling, of_model, size, own_seed, arm in itertools.product(
        samplings(table, task),
        bases,
        batches(table),
        seeds(table, seed),
        range(len(bases[0])),
    ):
        base = of_model[arm]
        named = convert_options(OF_CELL, plain | {"seed": own_seed} | sampling)
        if chat and not table.setting:
            named |= own_defaults(base.target, own_sampling, named)
        speculative = base.k != 0 and not base.elsewhere
        if task.verifier and speculative and "verifier" not in table.cells:
            named["verifier"] = Spec.parse(task.verifier)
        cell = base.but(**named)
        cell = cell.but(
            task=spec,
            prompt_version=task.prompt_version,
            chat=chat,
            system=(table.system or "") if chat else "",
            decoder=recording(cell.decoder, table.record),
            batch=size,
            continuous=table.continuous and size > 1,
        )
        if task.constrained:
            check_rows(cell, spec)
        if table.record == "trace" and (task.constrained or cell.constrained):
            raise UsageError(
                "`record` trace with a constraint: expected counts or laws, since a plan forecasts "
                "free texts. Leave one out"
            )
        if size > 1 and not (cell.own_loop or cell.on_server):
            raise UsageError(
                f"`batch` {size} with `decoder` {cell.decoder}: expected native, or a "
                "server that takes several requests at a time. Leave one out"
            )
        if cell.k == 0 and len(table.method) > 1 and lacks_baseline(cell):
            continue
        cells.setdefault(cell.id, cell)
        if len(cells) > MAX_CELLS:
            raise UsageError(
                f"more than {MAX_CELLS:,} cells of {spec}: expected fewer. "
                "Shorten the lists of options"
            )
    return tuple(cells.values())


def check_rows(cell: Cell, spec: Spec) -> None:
    """Refuse a cell that cannot apply the schemas that the prompts of a task bring.

    Raises:
        UsageError: stop strings, `ignore_eos`, another loop than this package's, or several ranks.
    """
    where = f"json_schema in the rows of {spec.name}"
    check_ends(cell, where)
    if not cell.own_loop:
        raise UsageError(f"{where} with `decoder` {cell.decoder}: expected native. Leave one out")
    if cell.ranks > 1:
        raise UsageError(f"{where} with `parallel`: expected one rank. Leave one out")


def lacks_baseline(cell: Cell) -> bool:
    """Return whether the cell's server has no other one beside it that does not speculate."""
    return cell.on_server and "baseline" not in dict(cell.decoder.args)


def cells_of(table: Sweep) -> list[Cell]:
    """Return the cells of `base_cells`, of all models."""
    return [cell for of_model in table.bases or base_cells(table) for cell in of_model]


def base_cells(table: Sweep) -> tuple[tuple[Cell, ...], ...]:
    """Make a cell for every way to draft with every model that a table names, by model.

    Sampling and the task are not in them yet.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    drafting = list(arms(table))
    return tuple(
        tuple(make_cell(**_without_drafting(table, work | arm)) for arm in drafting)
        for work in works(table)
    )


def _without_drafting(table: Sweep, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a cell, without those of drafting where the engine has its own.

    They are for the other decoders of the table; without any they stay, and are refused.
    """
    decoders = table.cells.get("decoder", ())
    if all(decoder.name in ELSEWHERE for decoder in decoders):
        return dict(options)
    if options["decoder"].name not in ELSEWHERE:
        return dict(options)
    return {name: value for name, value in options.items() if name not in OF_DRAFTING}


def recording(decoder: Spec, record: str) -> Spec:
    """The decoder, told what to record.

    Raises:
        UsageError: laws of a decoder that shows none.
    """
    if record != "laws":
        return decoder
    if decoder.name != "native":
        raise UsageError(
            f"`record` laws with `decoder` {decoder}: expected native, which records them"
        )
    return Spec(decoder.name, (*decoder.args, ("laws", True)))


def samplings(table: Sweep, task: Task) -> Iterator[dict[str, Any]]:
    """The paper's settings by name, or what is given, with every other option of sampling."""
    values = {name: table.cells[name] for name in SAMPLING_FIELDS if name in table.cells}
    if not table.setting:
        yield from combinations(values)
        return
    if any(name in values for name in WARP_OF_SETTINGS):
        raise UsageError("`setting` with `temperature` or `top_p`: expected one of the two")
    for name in table.setting:
        named = {"nucleus": task.nucleus, "greedy": task.greedy}[name]
        for options in combinations(values):
            yield {**named, **options}


def works(table: Sweep) -> Iterator[dict[str, Any]]:
    """Targets, and how they are run."""
    left_out = {*SAMPLING_FIELDS, *OF_DRAFTING}
    yield from combinations({n: values for n, values in table.cells.items() if n not in left_out})


def arms(table: Sweep) -> Iterator[dict[str, Any]]:
    """Return each arm's drafting: K = 0 for ars, then K by draft by drafter by verifier."""
    if "ars" in table.method:
        yield {"k": 0}
    if "sps" not in table.method:
        return
    lists = {name: table.cells[name] for name in OF_DRAFTING if name in table.cells}
    for k in lookaheads(table):
        for drafting in combinations(lists):
            if len(lists.get("drafter", ())) > 1 and own_copy(drafting["drafter"]):
                drafting.pop("draft", None)  # it is for the other drafters
            yield drafting if k is None else {"k": k, **drafting}


def seeds(table: Sweep, seed: int) -> list[int]:
    """Return the table's values, else the experiment's."""
    return [seed] if table.seeds is None else numbers("seeds", table.seeds, 0, SEED_MAX)


def batches(table: Sweep) -> list[int]:
    """Return the sizes of batches that `batch` names."""
    return numbers("batch", table.batch, 1, MAX_ROWS)


def lookaheads(table: Sweep) -> list[int] | list[None]:
    """The numbers that `k` names; none where it is left to the schedule, or to the drafter."""
    return [None] if table.k is None else numbers("k", table.k, 0, K_MAX)


def numbers(name: str, text: str, low: int, high: int) -> list[int]:
    """Return the numbers of the option `name`.

    Raises:
        UsageError: no range, or a number out of it.
    """
    try:
        return parse_range(text, low=low, high=high)
    except ValueError as error:
        raise UsageError(f"`{name}` {error}") from error


def combinations(lists: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every choice of one value from each list, the last list turning fastest."""
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))


def own_defaults(
    model: ModelSpec, own_sampling: OwnSampling, named: Mapping[str, Any]
) -> dict[str, Any]:
    """The sampling that a chat takes from its model: without what is `named` already.

    Args:
        named: options, or lists of them, by name. At temperature 0 no other one matters.

    Raises:
        UsageError: a value of the model that is out of range, and that nothing named replaces.
    """
    if named.get("temperature") in (0, (0,)):
        return {}
    return {
        name: OF_CELL[name].convert(_usual(name, value), f"{name} (generation_config of {model})")
        for name, value in own_sampling(model).items()
        if name not in named
    }


def _usual(name: str, value: object) -> object:
    """Return a value in the words of options: for `top_k`, vLLM's -1 is off and 50.0 is 50."""
    if name == "top_k" and isinstance(value, float) and value.is_integer():
        value = int(value)
    return 0 if name == "top_k" and value == -1 else value


def describe_defaults(model: ModelSpec, applied: Mapping[str, Any]) -> str:
    """`own_defaults` in a line."""
    words = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in applied.items())
    fields = " and ".join(f"`{name}`" for name in applied)
    verb = "wins" if len(applied) == 1 else "win"
    return (
        f"chat: {words} from the generation_config of {model}; {fields} on the command line {verb}"
    )


def in_chat(
    task: Task,
    spec: Spec,
    models: Iterable[ModelSpec],
    *,
    chat: str,
    system: str | None,
    templates: Callable[[ModelSpec], bool],
) -> dict[ModelSpec, Task | None]:
    """The task as each model is asked it in its template; None: it is given the text alone.

    Args:
        chat: `on`, `off`, or `auto`: where task and model both know how.
        system: a message before the prompts, for which there must be a chat.
        templates: whether a model has a chat template.

    Raises:
        UsageError: a chat that is not possible.
    """
    if chat == "on":
        return dict.fromkeys(models, instructed(task, spec))
    asking = None if chat == "off" else instruct(task)
    instructed_tasks = {
        model: asking if asking is not None and templates(model) else None
        for model in dict.fromkeys(models)
    }
    chats = [model for model, asked_task in instructed_tasks.items() if asked_task is not None]
    for model in chats:
        log.info(
            f"{spec}: prompts are put into the chat template of {model} (`chat` off: plain text)"
        )
    if system is not None and not chats:
        raise UsageError("`system` without a chat: expected a model with a template and `chat` on")
    return instructed_tasks


def instruct(task: Task) -> Task | None:
    """The task as an instruct model is asked it; None where it is not, or does not say."""
    make_instructed = getattr(task, "instruct", None)
    instructed_task: Task | None = make_instructed() if make_instructed is not None else None
    return instructed_task


def instructed(task: Task, spec: Spec) -> Task:
    """The same, where there must be one.

    Raises:
        UsageError: the task does not know how to ask.
    """
    instructed_task = instruct(task)
    if instructed_task is None:
        raise UsageError(
            f"`chat` on with {spec}: expected a task with instructions for chat models. Leave "
            f"`chat` out"
        )
    return instructed_task

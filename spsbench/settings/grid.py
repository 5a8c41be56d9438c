"""The cells of one table of options: every combination of its lists."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from spsbench.errors import UsageError
from spsbench.settings.asked import DEFAULT_K, make_cell, own_copy
from spsbench.settings.cell import Cell
from spsbench.settings.chat import OwnSampling, own_defaults
from spsbench.settings.ranges import parse_range
from spsbench.settings.sampling import SEED_MAX, Sampling
from spsbench.settings.setting import settings_of
from spsbench.settings.sweep import Sweep
from spsbench.settings.table import DRAFT, K_MAX
from spsbench.settings.task import Task
from spsbench.spec import Spec

OF_SAMPLING = tuple(each.name for each in settings_of(Sampling))
OF_DRAFTING = (*(each.name for each in DRAFT.values()), "drafter", "verifier", "schedule")
MOST = 10_000  # cells of one table
WARP = ("temperature", "top_p")  # what a setting of the paper decides


def grid(
    table: Sweep,
    spec: Spec,
    task: Task,
    *,
    seed: int,
    chat: bool = False,
    own: OwnSampling = lambda model: {},
) -> tuple[Cell, ...]:
    """Each cell once: settings first, then models, engines and decoders, then ways of drafting.

    Args:
        chat: the task is asked in the model's template.
        own: the sampling that a model names itself, for what a chat leaves open.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    cells: dict[str, Cell] = {}
    for new in table.cells.get("max_new_tokens", ()):
        if new < 1:
            raise UsageError(f"--max-new-tokens is {new}: expected 1 or more")
    ends: dict[str, Any] = {"stop": task.stop}
    if table.ignore_end:
        ends = {"ignore_eos": True}
    plain = {"max_new_tokens": task.max_new_tokens, **ends}
    for sampling, work, own_seed, drafting in itertools.product(
        samplings(table, task), works(table), seeds(table, seed), arms(table, task.verifier)
    ):
        given = plain | {"seed": own_seed} | sampling | work | drafting
        cell = make_cell(**given)
        if chat and not table.setting:
            cell = make_cell(**given | own_defaults(cell.models.target, own, given))
        cell = cell.but(
            task=spec,
            prompt_version=task.prompt_version,
            chat=chat,
            system=(table.system or "") if chat else "",
            decoder=recording(cell.method.decoder, table.record),
        )
        cells.setdefault(cell.id, cell)
        if len(cells) > MOST:
            raise UsageError(
                f"more than {MOST:,} cells of {spec}: expected fewer. Shorten the lists of options"
            )
    return tuple(cells.values())


def cells_of(table: Sweep) -> list[Cell]:
    """A cell for every way to draft with every model that a table names, defaults among them.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    return [make_cell(**work | arm) for work, arm in itertools.product(works(table), arms(table))]


def recording(decoder: Spec, record: str) -> Spec:
    """The decoder, told what to record.

    Raises:
        UsageError: laws of a decoder that shows none.
    """
    if record != "laws":
        return decoder
    if decoder.name != "native":
        raise UsageError(
            f"--record laws with --decoder {decoder}: expected native, which shows them"
        )
    return Spec(decoder.name, (*decoder.args, ("laws", True)))


def samplings(table: Sweep, task: Task) -> Iterator[dict[str, Any]]:
    """The paper's settings by name, or what is given, with every other option of sampling."""
    given = {name: table.cells[name] for name in OF_SAMPLING if name in table.cells}
    if not table.setting:
        yield from combinations(given)
        return
    if any(name in given for name in WARP):
        raise UsageError("--setting with --temperature or --top-p: expected one of the two")
    for name in table.setting:
        named = {"nucleus": task.nucleus, "greedy": task.greedy}[name]
        for rest in combinations(given):
            yield {**named, **rest}


def works(table: Sweep) -> Iterator[dict[str, Any]]:
    """Targets, and how they are run."""
    left_out = {*OF_SAMPLING, *OF_DRAFTING}
    yield from combinations({n: values for n, values in table.cells.items() if n not in left_out})


def arms(table: Sweep, verifier: str | None = None) -> Iterator[dict[str, Any]]:
    """How each arm drafts: K = 0 for ars, then the product of K, draft, drafter and verifier."""
    if "ars" in table.method:
        yield {"k": 0}
    if "sps" not in table.method:
        return
    given = {name: table.cells[name] for name in OF_DRAFTING if name in table.cells}
    if verifier is not None:
        given.setdefault("verifier", (verifier,))
    for k in lookaheads(table):
        for drafting in combinations(given):
            if len(given.get("drafter", ())) > 1 and own_copy(drafting["drafter"]):
                drafting.pop("draft", None)  # it is for the other drafters
            if drafting.get("draft") in table.heads:
                drafting |= {"drafter": table.heads[drafting["draft"]]}
            yield drafting if k is None else {"k": k, **drafting}


def seeds(table: Sweep, seed: int) -> list[int]:
    """Those of the table, else the experiment's.

    Raises:
        UsageError: no range, or a number out of it.
    """
    if table.seeds is None:
        return [seed]
    try:
        return parse_range(table.seeds, low=0, high=SEED_MAX)
    except ValueError as error:
        raise UsageError(f"--seeds {error}") from error


def lookaheads(table: Sweep) -> list[int] | list[None]:
    """The numbers that `k` names; none where a schedule is named instead.

    Raises:
        UsageError: no range, or a number out of it.
    """
    if table.k is None and "schedule" in table.cells:
        return [None]
    try:
        return parse_range(table.k or str(DEFAULT_K), low=0, high=K_MAX)
    except ValueError as error:
        raise UsageError(f"--k {error}") from error


def combinations(lists: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every choice of one value from each list, the last list turning fastest."""
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))

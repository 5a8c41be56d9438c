"""`spsbench.planning.logs.plan_log`: the library's and the command's way into plans from logs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore
from spsbench.planning.logs.answer import LogAnswer
from spsbench.planning.logs.conduct import USUAL, LogPlan, RuleDraft, prompts_by_id
from spsbench.planning.logs.prices import (
    Measured,
    Price,
    Ratios,
    parse_roofline,
    priced_batches,
    read_prices,
)
from spsbench.planning.logs.requests import FileEncoder, LogReader, Tokens
from spsbench.settings.cell import WARP, WarpSettings
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import KS, MAX_BATCH, OF_PLANNING
from spsbench.settings.execution import OF_ACCESS, Access
from spsbench.settings.log_options import OF_LOGS, LogOptions
from spsbench.settings.options import convert_options, parse_range, take_options, take_record
from spsbench.spec import K_MAX

RULES = ("sps", "block", "match")
OF_MODELS = ("dtype", "draft_dtype", "device", "draft_device", "weights", "draft_weights", "engine")
OF_PLANS = ("k", "batch", "costs", "prompts", "every")
LISTS = ("drafter", "draft", "verifier")
TAKEN = frozenset({*OF_LOGS, *OF_PLANS, *LISTS, *WARP, *OF_MODELS, *OF_ACCESS})
"""Options that say something of a log."""


def plan_log(
    log: str | Path | Sequence[str | Path],
    *,
    watch: Callable[[LogReader], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> LogAnswer:
    """Say from logs of served requests what speculation would have gained.

    Args:
        log: files of requests, `-` for standard input; told from each other by content.
        watch: is called with the reader after each request.
        stop: polled; true ends the reading, and the answer is of what was read.
        options: options of `sps plan --log`: `drafter`, `draft`, `verifier` (lists), `k`,
            `tokenizer`, `prompts`, `costs`, `draft_ratio`, `row_ratio`, `roofline`, `batch`, those
            of the sampling, and of models that are loaded.

    Returns:
        The answer: `sentence()`, `tables()`, `pasted()`, `values()`.

    Raises:
        UsageError: options that say nothing of a log, or contradict each other.
        SpsError: files, drafters or models that cannot be used.
    """
    remaining = {
        name: value for name, value in options.items() if value not in (None, [], (), False)
    }
    refused = sorted(remaining.keys() - TAKEN)
    if refused:
        raise UsageError(
            f"{refused[0]} with a log: expected options of drafters, sampling, tokenizer and "
            f"costs. Leave {refused[0]} out"
        )
    log_options = take_record(LogOptions, remaining)
    listed = {name: _list(remaining.pop(name, ())) for name in LISTS}
    planned = convert_options(OF_PLANNING, take_options(remaining, OF_PLANS))
    access = take_record(Access, remaining)
    warp = take_record(WarpSettings, remaining)
    ks = sorted(k for k in _range("k", planned.get("k", KS), K_MAX) if k)
    if not ks:
        raise UsageError("k of a plan from logs: expected a number from 1. Name one, as 1..8")
    rules = tuple(str(rule) for rule in listed["verifier"]) or RULES
    for rule in rules:
        if rule not in RULES:
            raise UsageError(
                f"verifier {rule} with a log: expected {', '.join(RULES)}. Leave it out"
            )
    models = frozenset(map(str, listed["draft"]))
    batches = _range("batch", planned["batch"], MAX_BATCH) if "batch" in planned else [1]
    prices, ms = prices_of(log_options, planned.get("costs"), batches, models)
    paths = [Path(file) for file in _list(log)]
    for path in paths:
        if str(path) != "-" and not path.exists():
            raise MissingError(f"no file {path}: expected a log of served requests. Check the path")
    encoder, size = encoder_of(log_options.tokenizer, access)
    named = listed["drafter"] or ([] if models else USUAL)
    drafters = [OF_CELL["drafter"].convert(drafter) for drafter in named]
    drafts = [RuleDraft.open(spec, encoder, size or 0) for spec in drafters]
    loaded = load_drafts(listed["draft"], remaining, access)
    if encoder is None and loaded:
        encoder = FileEncoder(loaded[0].tokenizer.backend_tokenizer)
    if size is None and loaded:
        size = min(model.vocab_size for model in loaded)
    folders = None
    if any(path.is_dir() for path in paths):
        from spsbench.planning.logs.own_run import run_requests

        folders = partial(run_requests, access=access)
    reader = LogReader(paths, prompts_by_id(planned.get("prompts")), folders)
    plan = LogPlan(
        reader=reader,
        ks=ks,
        drafts=drafts,
        models=loaded,
        rules=rules,
        warp=warp,
        tokens=Tokens(encoder, size),
        prices=prices,
        texts=log_options.texts,
        watch=lambda count: watch(reader),
        stop=stop,
    )
    return LogAnswer(plan.run(), ms, every=planned.get("every", False))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _range(name: str, value: Any, high: int) -> list[int]:
    try:
        return sorted(parse_range(str(value), low=0 if name == "k" else 1, high=high))
    except ValueError as error:
        raise UsageError(f"{name} {error}") from error


def prices_of(
    log_options: LogOptions, costs: Path | None, batches: Sequence[int], models: frozenset[str]
) -> tuple[list[Price], float | None]:
    """Return the costs of rounds in each batch, and the milliseconds of a plain token if known.

    Raises:
        UsageError: two sources of costs, or batches that they do not know.
    """
    table, ms = (None, None) if costs is None else read_prices(costs)
    by_ratios = log_options.draft_ratio is not None or log_options.row_ratio is not None
    if (table is not None) + by_ratios + (log_options.roofline is not None) > 1:
        raise UsageError(
            "costs, roofline and ratios: expected one of them to price rounds. Leave the others out"
        )
    if log_options.roofline is not None:
        return list(priced_batches(batches, parse_roofline(log_options.roofline), models)), ms
    if list(batches) != [1]:
        raise UsageError(
            "batch with a log: expected a roofline, which knows what a batch costs. Name one, as "
            "h100,params=8e9, or leave batch out"
        )
    if table is not None:
        return [Measured(table)], ms
    if by_ratios:
        return [
            Ratios(
                draft=log_options.draft_ratio or 0.0,
                row=log_options.row_ratio or 0.0,
                models=models,
            )
        ], ms
    return [], ms


def encoder_of(name: str | None, access: Access) -> tuple[FileEncoder | None, int | None]:
    """Return the tokenizer of a file, a folder or a model, and its number of tokens.

    Raises:
        SpsError: none there, or one that cannot be read.
    """
    if name is None:
        return None, None
    path = Path(name).expanduser()
    if not path.is_file():
        from spsbench.models.folder import locate
        from spsbench.settings.models import ModelSpec

        path = locate(ModelSpec(name), access) / "tokenizer.json"
    if not path.is_file():
        raise MissingError(
            f"no tokenizer.json ({path.parent}): expected a fast tokenizer. Name a tokenizer.json"
        )
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise DataError(
            f"no tokenizer ({path}: {error}): expected a tokenizer.json of tokenizers"
        ) from error
    return FileEncoder(tokenizer), tokenizer.get_vocab_size(with_added_tokens=True)


def load_drafts(names: Sequence[Any], options: Mapping[str, Any], access: Access) -> list[Any]:
    """Load draft models; torch's libraries are imported only for them.

    Raises:
        SpsError: a model that cannot be loaded.
    """
    if not names:
        return []
    with importing_libraries():
        from spsbench.planning.logs.draft_models import DraftModel

    of_draft = {name.removeprefix("draft_"): value for name, value in options.items()}
    return [DraftModel.load(str(name), of_draft, access) for name in names]

"""`spsbench.planning.logs.plan_log`: the library's and the command's way into plans from logs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.foreign import read_json
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore
from spsbench.metrics.costs import PLAIN, Costs, line
from spsbench.metrics.costs_file import read_costs
from spsbench.planning.logs.requests import FileEncoder, LogReader, Tokens
from spsbench.planning.logs.roofline import parse_roofline, roofline_costs, words
from spsbench.planning.logs.tables import ASSUMED_DRAFT, ASSUMED_ROW, LogAnswer
from spsbench.planning.logs.texts import LOOK_UP, USUAL, LogPlan, RuleDraft, prompts_by_id
from spsbench.settings.cell import WARP, WarpSettings
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import KS, MAX_BATCH, OF_PLANNING
from spsbench.settings.execution import OF_ACCESS, Access
from spsbench.settings.log_options import OF_LOGS, LogOptions
from spsbench.settings.options import convert_options, parse_range, take_options, take_record
from spsbench.spec import K_MAX

COSTS_BYTES = 256 << 20
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
    models = list(map(str, listed["draft"]))
    batches = _range("batch", planned["batch"], MAX_BATCH) if "batch" in planned else [1]
    costs, about, operations, ms = costs_of(
        log_options, planned.get("costs"), batches, models, max(ks)
    )
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
        costs=costs,
        batches=batches,
        operations=operations,
        texts=log_options.texts,
        watch=lambda count: watch(reader),
        stop=stop,
    )
    return LogAnswer(plan.run(), about, ms, every=planned.get("every", False))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _range(name: str, value: Any, high: int) -> list[int]:
    try:
        return sorted(parse_range(str(value), low=0 if name == "k" else 1, high=high))
    except ValueError as error:
        raise UsageError(f"{name} {error}") from error


def costs_of(
    log_options: LogOptions,
    path: Path | None,
    batches: Sequence[int],
    models: Sequence[str],
    most: int,
) -> tuple[Costs, str, float, float | None]:
    """Return costs of rounds, what they are, operations of a drafted token, and ms if known.

    Without named costs those of the assumption, in no words. The milliseconds are those of a plain
    token.

    Raises:
        UsageError: two sources of costs, or batches that they do not know.
    """
    table, ms = (None, None) if path is None else read_table(path)
    draft, row = log_options.draft_ratio, log_options.row_ratio
    by_ratios = draft is not None or row is not None
    if (table is not None) + by_ratios + (log_options.roofline is not None) > 1:
        raise UsageError(
            "costs, roofline and ratios: expected one of them to price rounds. Leave the others out"
        )
    if log_options.roofline is not None:
        fields = parse_roofline(log_options.roofline)
        runs_model = {LOOK_UP: False, **dict.fromkeys(models, True)}
        costs = roofline_costs(fields, runs_model, batches, most)
        return costs, words(fields), fields["draft_params"] / fields["params"], ms
    if list(batches) != [1]:
        raise UsageError(
            "batch with a log: expected a roofline, which knows what a batch costs. Name one, as "
            "h100,params=8e9, or leave batch out"
        )
    if table is not None:
        look_up = replace(table.arm(PLAIN), draft=line(0.0, 0.0))
        costs = replace(table, arms={LOOK_UP: look_up, **table.arms})
        return costs, "Rounds are priced by the measured table of costs.", 0.0, ms
    about = ""
    if by_ratios:
        draft, row = draft or 0.0, row or 0.0
        by_model = f"a drafted token of a model costs {draft:g}, " if models else ""
        about = f"In passes of plain sampling {by_model}a further row {row:g}; a look-up is free."
    else:
        draft, row = ASSUMED_DRAFT, ASSUMED_ROW
    costs = Costs.of_ratios(row or 0.0, {LOOK_UP: 0.0, **dict.fromkeys(models, draft or 0.0)})
    return costs, about, (draft or 0.0) if about else 0.0, ms


def read_table(path: Path) -> tuple[Costs | None, float | None]:
    """Return our table of costs, or the milliseconds a token of a `vllm bench serve` result.

    Raises:
        SpsError: neither of the two.
    """
    values = read_json(path, "a costs.json of a plan", limit=COSTS_BYTES, strict=False)
    for field in ("median_tpot_ms", "mean_tpot_ms"):
        ms = values.get(field) if isinstance(values, dict) else None
        if isinstance(ms, int | float) and 0 < ms < math.inf:
            return None, float(ms)
    return read_costs(path), None


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

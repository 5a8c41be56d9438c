"""`spsbench.planning.logs.plan_log`: the library's and the command's way into plans from logs."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.hardware.memory import importing_libraries
from spsbench.messages import ignore
from spsbench.planning.forecast.rounds import RULES
from spsbench.planning.logs.assumptions import assumed_costs
from spsbench.planning.logs.requests import RequestReader
from spsbench.planning.logs.tables import LogAnswer
from spsbench.planning.logs.texts import USUAL, LogPlan, open_drafter, prompts_by_id
from spsbench.planning.logs.tokens import LogTokenizer, log_tokenizer
from spsbench.settings.cell import DISTRIBUTION, WARP, WarpSettings
from spsbench.settings.commands import Candidates, LogOptions, Planning
from spsbench.settings.execution import Access
from spsbench.settings.options import is_given, options_of, parse
from spsbench.settings.processors import PROCESSORS
from spsbench.spec import Spec

OF_MODELS = ("dtype", "draft_dtype", "device", "draft_device", "weights", "draft_weights", "engine")
OF_PLANS = ("k", "batch", "costs", "prompts", "every")
LISTS = ("drafter", "draft", "verifier")
TAKEN = frozenset({*options_of(LogOptions, Access), *OF_PLANS, *LISTS, *DISTRIBUTION, *OF_MODELS})
"""Options that say something of a log."""


def plan_log(
    log: str | Path | Sequence[str | Path],
    *,
    watch: Callable[[RequestReader], None] = ignore,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> LogAnswer:
    """Say from logs of served requests what speculation would have gained.

    The answer has `sentence()`, `tables()`, `pasted()`, `values()`. UsageError: options that say
    nothing of a log, or contradict each other. SpsError: unusable files, drafters or models.

    Args:
        log: files of requests, `-` for standard input, or runs of sps bench; told by content.
        watch: is called with the reader after each request.
        stop: polled; true ends the reading, and the answer is of what was read.
        options: options of `sps plan --log`: `drafter`, `draft`, `verifier` (lists), `k`,
            `tokenizer`, `prompts`, `costs`, `draft_ratio`, `row_ratio`, `roofline`, `batch`, those
            of the sampling, and of models that are loaded.
    """
    remaining = {name: value for name, value in options.items() if is_given(value)}
    if refused := sorted(remaining.keys() - TAKEN):
        raise UsageError(
            f"`{refused[0]}` with a log: expected an option of drafters, sampling, tokenizer or "
            "costs. Leave it out"
        )
    log_options, planning, grid, access = parse(remaining, LogOptions, Planning, Candidates, Access)
    named, ks = grid.given, sorted(planning.k)
    warp = WarpSettings(**{name: value for name, value in named.items() if name in WARP})
    rules = tuple(map(str, grid.axes.get("verifier", RULES)))
    for rule in rules:
        if rule not in RULES:
            raise UsageError(
                f"`verifier` {rule} with a log: expected {', '.join(RULES)}. Leave it out"
            )
    models, batches = grid.axes.get("draft", ()), sorted(planning.batch) or [1]
    costs, about = assumed_costs(log_options, planning.costs, batches, models, max(ks))
    paths = [Path(file) for file in ([log] if isinstance(log, str | Path) else log)]
    reader = RequestReader(paths, prompts_by_id(planning.prompts), unread_counts=log_options.unread)
    tokens = log_tokenizer(log_options.tokenizer, access)
    drafters = grid.axes.get("drafter", () if models else map(Spec.parse, USUAL))
    by_name = {str(spec): open_drafter(spec, tokens.vocab_size or 0) for spec in drafters}
    loaded: list[Any] = []
    if models or any(path.is_dir() for path in paths):
        with importing_libraries():
            from spsbench.planning.logs.from_models import DraftModel, run_requests

        of_draft = {
            name.removeprefix("draft_"): value
            for name, value in named.items()
            if name in (*OF_MODELS, *PROCESSORS)
        }
        loaded = [DraftModel.load(name, of_draft, access) for name in models]
        reader.folders = partial(run_requests, access=access)
    if loaded and tokens.tokenizer is None:
        size = min(model.vocab_size for model in loaded)
        tokenizer = loaded[0].tokenizer
        tokens = LogTokenizer.of_backend(tokenizer.backend_tokenizer, size, tokenizer)
    plan = LogPlan(
        reader=reader,
        ks=ks,
        drafters=by_name,
        models=loaded,
        rules=rules,
        warp=warp,
        processed=any(name in named for name in PROCESSORS),
        tokens=tokens,
        costs=costs,
        batches=batches,
        watch=watch,
        stop=stop,
    )
    return LogAnswer(plan.run(), about, every=planning.every)

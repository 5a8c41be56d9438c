"""Audits: of a pair by texts made for it, of a run by its records, of rules by enumeration."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from spsbench.api.verified import Held, advice_on
from spsbench.audit.statistical.jobs import workers_for
from spsbench.audit.statistical.pair import TASKS, audit_pair, greedy_pair, prompts_of
from spsbench.audit.statistical.replay import replay
from spsbench.benchmark.models import Models
from spsbench.errors import DataError, UsageError
from spsbench.messages import Say, lines_to, takes_say
from spsbench.models.cache import ModelCache
from spsbench.settings.cell import Cell
from spsbench.settings.commands import OF_REPLAY, Audit, Replay
from spsbench.settings.execution import Access
from spsbench.settings.options import convert_options, take_record
from spsbench.spec import Spec

log = logging.getLogger(__name__)


@takes_say
def verify_pair(pair: Any, **asked: Any) -> Held:
    """Generate with a pair until a bias is found, or none of the asked size is there.

    At temperature 0 each prompt is identical, a rounding tie, or a bug.

    Args:
        pair: of `spsbench.load`.
        say: receives each line that a user should know; without it they go to `logging` alone.
        asked: options of the audit (`bias`, `level`, `prompts`, ...) and of cells.

    Raises:
        SpsError: options that cannot be meant, or no prompt that fits.
    """
    plan = take_record(Audit, asked)
    cell, loaded = pair.configured(**asked)
    if cell.k == 0:
        raise UsageError("--k 0: expected K of 1 or more. ArS is what SpS is compared with")
    tasks = [Spec.parse(name) for name in plan.task] or TASKS
    found = prompts_of(cell, loaded, tasks, plan.prompts)
    if not found:
        raise DataError("no prompt fits the context (--task): expected one. Name another task")
    known = {"cell": cell.to_json(), "prompts": [p.name for p in found], "bias": plan.bias}
    if cell.sampling.temperature == 0:
        return Held(named(cell), known, greedy_pair(cell, loaded, found))
    workers = plan.workers or workers_for(cell, loaded)
    if workers > 1 and cell.models.ranks > 1:
        raise UsageError(
            f"--workers {workers} with --parallel: expected 1, since ranks share one model. "
            "Leave --workers out"
        )
    log.info(f"auditing {named(cell)}: {len(found)} prompts, {workers} processes")
    finding = audit_pair(
        cell,
        loaded,
        found,
        bias=plan.bias,
        level=plan.level,
        most=plan.max_tokens,
        workers=workers,
        offline=pair.access.offline,
    )
    return Held(named(cell), known, finding, advice_on(cell, finding))


def verify_run(
    run: Path, access: Access, *, say: Say | None = None, **asked: Any
) -> Iterator[Held]:
    """Audit the records of a run: every emitted token against the target's law, scored anew.

    Args:
        say: receives each line that a user should know; without it they go to `logging` alone.
        asked: `bias`, `level`, `max_tokens`.
    """
    plan = Replay(**convert_options(OF_REPLAY, asked))
    if access.threads is not None:
        torch.set_num_threads(access.threads)
    with lines_to(say):
        model_cache = ModelCache(offline=access.offline, allow_pickle=access.allow_pickle)
        models = Models(model_cache)
        for done in replay(run, models, level=plan.level, asked=plan.bias, most=plan.max_tokens):
            known = {
                "id": done.cell.id,
                "cell": done.cell.to_json(),
                "ars": done.control,
                "failures": done.failures,
                "records": done.records,
            }
            yield Held(named(done.cell), known, done.result, advice_on(done.cell, done.result))


def named(cell: Cell) -> str:
    """A cell in a few words."""
    task = f"{cell.work.task}, " if cell.work.task else ""
    theirs = "" if cell.method.own_loop else f", {cell.method.decoder}"
    return f"{task}{cell.method}, temperature {cell.sampling.temperature:g}{theirs}"

"""Audits of a pair and of the records of a run."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.audit.statistical.audit import AuditVerdict, Finding
from spsbench.audit.statistical.greedy import Greedy
from spsbench.audit.statistical.jobs import plain_here, workers_for
from spsbench.audit.statistical.pair import TASKS, audit_pair, greedy_pair, prompts_of
from spsbench.audit.statistical.replay import replay
from spsbench.benchmark.models import Models
from spsbench.errors import DataError, UsageError
from spsbench.messages import Say, lines_to, takes_say
from spsbench.models.cache import Loaded, ModelCache
from spsbench.settings.cell import Cell
from spsbench.settings.commands import OF_REPLAY, Audit, Replay
from spsbench.settings.execution import Access
from spsbench.settings.options import convert_options, flag_of, take_record
from spsbench.spec import Spec


@dataclass(frozen=True, slots=True)
class Held:
    """The result of an audit of one configuration; truthy only if losslessness held."""

    name: str
    settings: dict[str, Any]
    result: Finding | Greedy
    advice: str = ""  # likely causes of a bias, and the command that separates them

    @property
    def verdict(self) -> AuditVerdict:
        """Return the verdict: held, bias found, or not valid because the controls failed."""
        return self.result.verdict

    @property
    def line(self) -> str:
        """Return the result in a sentence, with the size of the detectable bias."""
        return self.result.line

    def __bool__(self) -> bool:
        return self.verdict is AuditVerdict.HELD

    def __str__(self) -> str:
        return f"{self.name}: {self.line}"


def advice_on(cell: Cell, result: Finding | Greedy) -> str:
    """Return likely causes of the bias found in `cell`, and the command that separates them.

    The text is empty if plain sampling is biased too, if tokens were impossible, or if another
    library's loop generated the text.
    """
    if not isinstance(result, Finding) or result.verdict is not AuditVerdict.BIAS:
        return ""
    if result.shared or result.sps.impossible or not cell.own_loop:
        return ""
    rule = f"sps verify rules --verifier {cell.verifier}"
    rule_of_drafter = f"{rule} {flag_of('drafter')} {cell.drafter}"
    return (
        "A drafter that misreports p, a wrong residual and a row of q or p that is shifted by a "
        f"token all look like this. `{rule}` finds a wrong residual or a shifted row of the rule, "
        f"`{rule_of_drafter}` a drafter that misreports p: then it is BIASED "
        "with this drafter alone. If both hold, look below them: at a row that the engine or its "
        "cache shifts (compare with `engine` eager), or at weights of the drafter, which tables "
        "cannot stand for."
    )


log = logging.getLogger(__name__)


@takes_say
def verify_pair(pair: Any, **options: Any) -> Held:
    """Generate with a pair until a bias is found, or a bias of the given size is ruled out.

    At temperature 0 each prompt is identical, a rounding tie, or a bug.

    Args:
        pair: result of `spsbench.load`.
        say: receives each message for the user; None: messages go to `logging` only.
        options: options of the audit (`bias`, `level`, `prompts`, ...) and of cells.

    Raises:
        SpsError: invalid options, or no prompt that fits.
    """
    plan = take_record(Audit, options)
    cell, loaded = pair.configured(**options)
    if cell.elsewhere:
        loaded = pair.model_cache.load(plain_here(cell))
    if cell.constrained:
        raise UsageError(
            "an audit of texts under a constraint: expected free texts. "
            "docs/structured.md says what holds masked ones"
        )
    if cell.k == 0:
        raise UsageError("`k` 0: expected K of 1 or more, to compare with auto-regressive sampling")
    tasks = [Spec.of_task(name) for name in plan.task] or TASKS
    samples = prompts_of(cell, loaded, tasks, plan.prompts, plan.sample_seed)
    if not samples:
        raise DataError("no prompt fits the context (`task`): expected one. Name another task")
    settings = {"cell": cell.to_json(), "prompts": [p.name for p in samples], "bias": plan.bias}
    if plan.sample_seed is not None:
        settings["sample_seed"] = plan.sample_seed
    if cell.temperature == 0:
        return Held(named(cell), settings, greedy_pair(cell, loaded, samples))
    workers = plan.workers or workers_for(cell, loaded)
    if workers > 1 and cell.ranks > 1:
        raise UsageError(
            f"`workers` {workers} with `parallel`: expected 1, since ranks share one model. "
            "Leave `workers` out"
        )
    if workers > 1 and cell.elsewhere:
        raise UsageError(
            f"`workers` {workers} with `decoder` {cell.decoder.name}: expected 1, since "
            "there is one engine. Leave `workers` out"
        )
    log.info(f"auditing {named(cell)}: {len(samples)} prompts, {workers} processes")
    finding = audit_pair(
        cell,
        loaded,
        samples,
        bias=plan.bias,
        level=plan.level,
        most=plan.max_tokens,
        workers=workers,
        access=pair.access,
    )
    return Held(named(cell), settings, finding, advice_on(cell, finding))


def verify_run(
    run: Path, access: Access, *, say: Say | None = None, **options: Any
) -> Iterator[Held]:
    """Audit the records of a run: rescore every token with the target, and test for bias.

    Args:
        say: receives each message for the user; None: messages go to `logging` only.
        options: `bias`, `level`, `max_tokens`.
    """
    plan = Replay(**convert_options(OF_REPLAY, options))
    if access.threads is not None:
        torch.set_num_threads(access.threads)
    with lines_to(say):
        model_cache = ModelCache(access)
        loads = Models(model_cache)

        def models(cell: Cell) -> Loaded:
            return loads(plain_here(cell) if cell.elsewhere else cell)

        for done in replay(run, models, level=plan.level, bias=plan.bias, most=plan.max_tokens):
            settings = {
                "id": done.cell.id,
                "cell": done.cell.to_json(),
                "ars": done.control,
                "failures": done.failures,
                "records": done.records,
            }
            yield Held(named(done.cell), settings, done.result, advice_on(done.cell, done.result))


def named(cell: Cell) -> str:
    """Return a short name of a cell."""
    task = f"{cell.task}, " if cell.task else ""
    theirs = "" if cell.own_loop else f", {cell.decoder}"
    return f"{task}{cell.noise_key}, temperature {cell.temperature:g}{theirs}"

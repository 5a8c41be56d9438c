"""Audits of a pair and of the records of a run."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch

from spsbench.audit.statistical.betting import LEVEL
from spsbench.audit.statistical.finding import (
    LEADS,
    AuditVerdict,
    AuditWithBaseline,
    Finding,
    MethodAudit,
    format_claim,
)
from spsbench.audit.statistical.greedy import Greedy, greedy_pair, greedy_records
from spsbench.audit.statistical.referee import AuditText, bound_rounding
from spsbench.audit.statistical.texts import (
    AuditJob,
    Examined,
    NamedPrompt,
    Workbench,
    audit_jobs,
    audited_text,
    draw_prompts,
    perform_in_order,
    plain_jobs,
    with_weights,
    workers_for,
)
from spsbench.benchmark.models import Models
from spsbench.benchmark.run_prompts import RunPrompts, relocate_models
from spsbench.errors import DataError, UsageError
from spsbench.messages import Say, lines_to, takes_say
from spsbench.models.cache import Loaded, ModelCache
from spsbench.parallel.process_group import lost_rank_as_error
from spsbench.settings.cell import Cell
from spsbench.settings.commands import AuditOptions, RunAuditOptions
from spsbench.settings.execution import Access
from spsbench.settings.options import flag_of
from spsbench.settings.records import Record
from spsbench.spec import Spec
from spsbench.store.manifest import Manifest
from spsbench.store.records import records

log = logging.getLogger(__name__)

TASKS = (Spec("humaneval"), Spec("xsum", (("data", "mini"), ("count", 40))))
OFTEN = 2_000  # tokens between two progress messages
CALIBRATION = 4  # generated texts for the measurement of rounding
KEPT_CALIBRATION = 8  # or kept ones
CONTROL = 1 << 20  # first repeat of texts that are made besides
CONTROL_TOKENS = 2_000  # ArS tokens generated if a run has none
CONTROL_TEXTS = 200


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
        """Return verdict and result in a sentence; of sampled texts also tokens and seconds."""
        if isinstance(self.result, Greedy):
            return self.result.line
        sps, ars = self.result.audited, self.result.plain
        plain = f" and {ars.tokens:,} of {ars.name}" if ars else ""
        tokens = f"{sps.tokens:,} tokens of {sps.name}{plain}"
        return f"{LEADS[self.verdict]}{self.result.line} ({tokens}, {self.result.seconds:.0f} s)"

    def __bool__(self) -> bool:
        return self.verdict is AuditVerdict.HELD

    def __str__(self) -> str:
        return f"{self.name}: {self.line}"


def advice_on(cell: Cell, result: Finding | Greedy) -> str:
    """Return likely causes of the bias found in `cell`, and the command that separates them.

    "" without a bias, for greedy texts, if plain sampling is biased too, if tokens were impossible,
    or if another library's loop generated the text.
    """
    if not isinstance(result, Finding) or result.verdict is not AuditVerdict.BIAS:
        return ""
    if result.shared or result.audited.impossible or not cell.own_loop:
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


class PairAudit(AuditWithBaseline):
    """An audit of one cell, whose texts of both methods go through one loop.

    `calibration` are ArS texts on which the effect of rounding is measured.
    """

    def __init__(
        self,
        bench: Workbench,
        calibration: Sequence[AuditText],
        *,
        level: float = LEVEL,
        bias: float | None = None,
        workers: int = 1,
        access: Access = Access(),  # frozen
    ) -> None:
        self._began, self._logged = time.perf_counter(), 0
        self._workers, self._access = workers, access
        bands, edge = bound_rounding(
            bench.loaded.target, bench.referee, bench.alternatives, calibration
        )
        self._bench = bench.with_edge(edge)
        sps, ars = (MethodAudit(name, bench.alternatives, bands, level) for name in ("SpS", "ArS"))
        self.methods = {True: sps, False: ars}  # by whether a text is speculative
        super().__init__(sps, ars, bias)

    def take(self, work: Iterable[AuditJob], until: Callable[[], bool]) -> None:
        """Add texts of `work` to `methods` in order, unless `until()`; ask it again after each."""

        def receive(job: AuditJob, examined: Examined) -> bool:
            """Add a text's evidence to its method, log every `OFTEN` SpS tokens; then `until()`."""
            self.methods[job.speculative].take(*examined)
            if self.audited.tokens - self._logged >= OFTEN:
                self._logged = self.audited.tokens
                claim = None if self.bias is None else self.claim()
                power = (
                    "" if claim is None else f", would have caught a bias of {format_claim(claim)}"
                )
                log.info(f"{self._logged:,} tokens{power}, {self.seconds:.0f} s")
            return until()

        if not until():
            perform_in_order(self._bench, work, receive, workers=self._workers, access=self._access)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


def audit_pair(
    cell: Cell, loaded: Loaded, prompts: Sequence[NamedPrompt], *, most: int, **options: Any
) -> Finding:
    """Generate ArS and SpS texts in turn until the audit is decided, or `most` SpS tokens long.

    After an alarm of SpS ArS texts follow, until they alarm or are as long. In half precision texts
    made before all others measure the rounding. `options` are of `PairAudit`.
    """
    bench = Workbench.of(cell, loaded)
    narrow = loaded.target.dtype.itemsize < 4
    first = [AuditJob(False, prompt, CONTROL) for prompt in prompts[:CALIBRATION] if narrow]
    audit = PairAudit(bench, [bench.generate(job) for job in first], **options)
    sps, ars = audit.methods[True], audit.methods[False]
    audit.take(audit_jobs(prompts), lambda: audit.decided or sps.tokens >= most)
    if sps.alarmed:  # an alarm needs a control of the same length
        audit.take(plain_jobs(prompts), lambda: ars.alarmed or ars.tokens >= sps.tokens)
    return audit.finding(audit.seconds)


def audit_texts(
    cell: Cell,
    loaded: Loaded,
    ars: Sequence[AuditText],
    sps: Sequence[AuditText],
    *,
    most: int | None,
    **options: Any,
) -> Finding:
    """Audit kept texts of each method until it alarms, or has `most` tokens (None: all).

    The first `ars`, else `sps`, measure the rounding. `options` are of `PairAudit`.
    """
    calibration = [*ars[:KEPT_CALIBRATION]] or [*sps[:KEPT_CALIBRATION]]
    audit = PairAudit(Workbench.of(cell, loaded), calibration, **options)
    for speculative, texts in ((False, ars), (True, sps)):
        work = [AuditJob(speculative, NamedPrompt(t.name, t.prompt), 0, t) for t in texts]
        method = audit.methods[speculative]
        audit.take(work, lambda m=method: m.alarmed or (most or math.inf) <= m.tokens)  # type: ignore[misc]
    return audit.finding(audit.seconds)


@takes_say
@lost_rank_as_error()
def verify_pair(pair: Any, plan: AuditOptions, **options: Any) -> Held:
    """Generate with a pair until a bias is found, or a bias of the given size is ruled out.

    At temperature 0 each prompt is identical, a rounding tie, or a bug. `pair` is what
    `spsbench.load` returns; `plan` has the prompts, the bias to detect, and when to end; `say`
    receives messages for the user (None: only `logging`). `options` are of cells. SpsError: they
    are invalid or not audited (K = 0, a constraint), no prompt fits, or `workers` share a model.
    """
    cell, _ = pair.configured(**options)
    loaded = pair.model_cache.load(with_weights(cell))
    if cell.constrained:
        raise UsageError(
            "an audit of texts under a constraint: expected free texts. Leave the constraint out; "
            "enumeration holds masked texts (docs/explanation/exactness.md)"
        )
    if cell.k == 0:
        raise UsageError("`k` 0: expected K of 1 or more, to compare with auto-regressive sampling")
    tasks = [Spec.of_task(name) for name in plan.task] or TASKS
    samples = draw_prompts(cell, loaded, tasks, plan.prompts, plan.sample_seed)
    if not samples:
        raise DataError("no prompt fits the context (`task`): expected one. Name another task")
    settings = {"cell": cell.to_json(), "prompts": [p.name for p in samples], "bias": plan.bias}
    if plan.sample_seed is not None:
        settings["sample_seed"] = plan.sample_seed
    if cell.temperature == 0:
        return Held(short_cell_name(cell), settings, greedy_pair(cell, loaded, samples))
    workers = plan.workers or workers_for(cell, loaded)
    if workers > 1 and (cell.ranks > 1 or cell.elsewhere):
        why = f"{cell.ranks} ranks: expected 1, which share one model"
        if cell.ranks == 1:
            why = f"`decoder` {cell.decoder.name}: expected 1, since there is one engine"
        raise UsageError(f"`workers` {workers} with {why}. Leave `workers` out")
    log.info(f"auditing {short_cell_name(cell)}: {len(samples)} prompts, {workers} processes")
    options = {"level": plan.level, "workers": workers, "access": pair.access}
    finding = audit_pair(cell, loaded, samples, bias=plan.bias, most=plan.max_tokens, **options)
    return Held(short_cell_name(cell), settings, finding, advice_on(cell, finding))


def verify_run(
    run: Path, access: Access, plan: RunAuditOptions = RunAuditOptions(), *, say: Say | None = None
) -> Iterator[Held]:
    """Yield the audit of each speculative cell of a run, whose texts the target scores again.

    The level is for the whole run and is divided among these cells. A sampled cell without ArS
    texts in the run gets some; greedy texts are compared with the target's argmax. Nothing is
    written, and failed records are only counted. `access.threads` are set for the process.

    Args:
        run: its folder. SpsError, while iterating: no run, damage, nothing to audit, other prompts.
        say: receives each message for the user; None: messages go to `logging` only.
    """
    if access.threads is not None:
        torch.set_num_threads(access.threads)
    with lines_to(say):
        loads = Models(ModelCache(access))

        def models(cell: Cell) -> Loaded:
            return cast("Loaded", loads(relocate_models(with_weights(cell), run)))

        manifest, cells, kept = _auditable(run)
        prompts = RunPrompts(manifest, cells, models, run)
        speculative = [name for name, cell in cells.items() if cell.k != 0 and kept[name]]
        plan = replace(plan, level=plan.level / len(speculative))
        for name in speculative:
            cell = cells[name]
            log.info(f"auditing {cell.noise_key} at temperature {cell.temperature:g} ({name})")
            base = [other for other, c in cells.items() if c.k == 0 and c.same_work(cell)]
            ars, sps = (
                [
                    audited_text(prompts(cells[of], r), r, f"{r.sample} #{r.repeat}")
                    for of in names
                    for r in kept[of]
                    if r.error is None
                ]
                for names in (base if cell.temperature else [], [name])
            )
            settings = {
                "id": cell.id,
                "cell": cell.to_json(),
                "ars": "of the run" if ars else "made for this audit: the run has none",
                "failures": sum(record.error is not None for record in kept[name]),
                "records": len(kept[name]),
            }
            yield _of_texts(cell, models(cell), ars, sps, plan, settings)


def _of_texts(
    cell: Cell,
    loaded: Loaded,
    ars: list[AuditText],
    sps: Sequence[AuditText],
    plan: RunAuditOptions,
    settings: dict[str, Any],
) -> Held:
    """Return the audit of kept texts; sampled ones without `ars` get new ones, not put in `ars`."""
    result: Finding | Greedy
    if cell.temperature == 0:
        result, settings = greedy_records(cell, loaded, sps), settings | {"ars": ""}
    else:
        ars = ars or list(_generate_ars_texts(Workbench.of(cell, loaded), sps))
        limits = {"level": plan.level, "bias": plan.bias}
        result = audit_texts(cell, loaded, ars, sps, most=plan.max_tokens, **limits)
    return Held(short_cell_name(cell), settings, result, advice_on(cell, result))


def _auditable(folder: Path) -> tuple[Manifest, dict[str, Cell], dict[str, list[Record]]]:
    """Read a run's manifest, cells by id, and records by cell; SpsError: it cannot be audited.

    It needs records of speculative sampling with token ids, of no random weights or constraint.
    """
    manifest = Manifest.load(folder)
    cells = manifest.configurations(folder)
    kept: dict[str, list[Record]] = {name: [] for name in cells}
    for record in records(folder):
        kept.setdefault(record.cell, []).append(record)
    speculative = [cell for name, cell in cells.items() if cell.k != 0 and kept[name]]
    if not speculative:
        raise UsageError(f"nothing to verify ({folder}): expected records of speculative sampling")
    if any(cell.random for cell in speculative):
        raise UsageError(f"random weights ({folder}): expected a run whose text has a meaning")
    audited = list(chain.from_iterable(kept[cell.id] for cell in speculative))
    if any(r.masks is not None for r in audited) or any(c.constrained for c in speculative):
        raise UsageError(
            f"texts under a constraint ({folder}): expected free texts, since their distributions "
            "are audited without masks. Choose a run without a constraint"
        )
    for record in audited:
        if record.error is None and record.text and not record.tokens:
            raise DataError(
                f"no token ids ({folder}, {cells[record.cell].decoder}): expected an engine that "
                "reports them. Audit it with `sps check`"
            )
    return manifest, cells, kept


def _generate_ars_texts(bench: Workbench, like: Sequence[AuditText]) -> Iterator[AuditText]:
    """Yield ArS texts of the first CONTROL_TEXTS prompts in `like`, to CONTROL_TOKENS in all."""
    count = 0
    for text in like[:CONTROL_TEXTS]:
        fresh = bench.generate(AuditJob(False, NamedPrompt("control", text.prompt), count))
        count += len(fresh.tokens)
        yield fresh
        if count >= CONTROL_TOKENS:
            return


def short_cell_name(cell: Cell) -> str:
    """Return a short name of a cell."""
    task = f"{cell.task}, " if cell.task else ""
    theirs = "" if cell.own_loop else f", {cell.decoder}"
    return f"{task}{cell.noise_key}, temperature {cell.temperature:g}{theirs}"

"""Audits: of a pair, of the records of a run, and of a head's acceptance."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.audit.statistical.audit import AuditVerdict, Finding
from spsbench.audit.statistical.golden import (
    FAINT,
    NEAR,
    Golden,
    Parting,
    Passage,
    along,
    by_depth,
    parting,
)
from spsbench.audit.statistical.greedy import Greedy
from spsbench.audit.statistical.jobs import generate, plain_cell, plain_here, workers_for
from spsbench.audit.statistical.pair import TASKS, audit_pair, greedy_pair, prompts_of
from spsbench.audit.statistical.replay import rates_in, replay
from spsbench.benchmark.models import Models, model_digests
from spsbench.errors import DataError, UsageError
from spsbench.messages import Say, lines_to, takes_say
from spsbench.methods.build import load_cell
from spsbench.methods.resolve import check_weights, plan_of
from spsbench.models.cache import Loaded, ModelCache
from spsbench.models.config import read_object
from spsbench.models.prepare import note_default_drafters, prepare_request
from spsbench.settings.cell import Cell
from spsbench.settings.commands import OF_REPLAY, Audit, HeadAudit, Replay
from spsbench.settings.execution import Access
from spsbench.settings.options import convert_options, flag_of, take_record
from spsbench.settings.request import CellRequest
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file


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
    if result.shared or result.sps.impossible or not cell.method.own_loop:
        return ""
    rule = f"sps verify rules --verifier {cell.method.verifier}"
    rule_of_drafter = f"{rule} {flag_of('drafter')} {cell.method.drafter}"
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
    if cell.method.elsewhere:
        loaded = pair.model_cache.load(plain_here(cell))
    if cell.sampling.constrained:
        raise UsageError(
            "an audit of texts under a constraint: expected free texts. "
            "`sps verify rules --structured` proves masked ones"
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
    if cell.sampling.temperature == 0:
        return Held(named(cell), settings, greedy_pair(cell, loaded, samples))
    workers = plan.workers or workers_for(cell, loaded)
    if workers > 1 and cell.models.ranks > 1:
        raise UsageError(
            f"`workers` {workers} with `parallel`: expected 1, since ranks share one model. "
            "Leave `workers` out"
        )
    if workers > 1 and cell.method.elsewhere:
        raise UsageError(
            f"`workers` {workers} with `decoder` {cell.method.decoder.name}: expected 1, since "
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
            return loads(plain_here(cell) if cell.method.elsewhere else cell)

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
    task = f"{cell.work.task}, " if cell.work.task else ""
    theirs = "" if cell.method.own_loop else f", {cell.method.decoder}"
    return f"{task}{cell.method}, temperature {cell.sampling.temperature:g}{theirs}"


LIMIT = 256 << 20  # bytes of a golden file
READABLE = {
    "dtype": "float32",
    "draft_dtype": "float32",
    "engine": "eager",
    "draft_engine": "eager",
}
"""Options for the measurement of golden acceptance."""


@dataclass(frozen=True, slots=True)
class HeadFound:
    """The expected acceptance of a head, and the measured one."""

    golden: Golden
    path: Path
    made: bool  # the file is new
    now: Golden | None = None  # acceptance on the same texts with the requested options
    parted: Parting | None = None
    log: tuple[float, ...] | None = None  # acceptance by depth of another engine
    log_parts: int | None = None  # first depth at which the log differs

    def __bool__(self) -> bool:
        return self.parted is None and self.log_parts is None

    @property
    def line(self) -> str:
        """Return the result in a sentence."""
        if self.parted is not None:
            p, (expected, now) = self.parted, self.parted.slots
            return (
                f"PARTED at depth {p.depth}: acceptance {p.found:.3f}, expected {p.expected:.3f}; "
                f"widest in {p.passage} after {p.place} tokens, where the laws overlap "
                f"{now.overlap:.3f} (token {now.likeliest}) instead of {expected.overlap:.3f} "
                f"(token {expected.likeliest})"
            )
        if self.log is not None and self.log_parts is not None:
            at = self.log_parts
            expected_there = self.golden.depths[at - 1].acceptance
            return (
                f"PARTED at depth {at}: the log has acceptance {self.log[at - 1]:.3f}, expected "
                f"{expected_there:.3f}"
            )
        kept = f"{self.golden.kept:.2f} of {len(self.golden.depths)} drafted tokens kept"
        if self.now is None and self.log is None:
            return f"golden: {kept} in expectation"
        return f"held: acceptance within {NEAR:g} of the golden one at every depth ({kept})"


def verify_head(*, say: Say | None = None, **options: Any) -> HeadFound:
    """Compare the acceptance by depth of a target and its head with a stored one.

    The first call measures the acceptance in float32 with the engine `eager` and writes `golden`.
    Later calls run the pair with the requested options on the same texts and compare.

    Args:
        say: receives each message for the user; None: messages go to `logging` only.
        options: `golden`, `task`, `prompts`, `tokens`, `log`, and options of cells.

    Raises:
        SpsError: invalid options, or a golden file of another pair.
    """
    plan = take_record(HeadAudit, options)
    with lines_to(say):
        return audit_head(CellRequest.of(options), plan)


def audit_head(request: CellRequest, plan: HeadAudit) -> HeadFound:
    """Compare the acceptance of the pair that is requested with a stored one: see `verify_head`."""
    path = Path(plan.golden)
    is_new = not path.exists()
    if is_new:
        cell, loaded = load_models(readable(request))
        golden = measured(cell, loaded, texts_of(cell, loaded, plan))
        replace_file(path, (json.dumps(golden.to_json(), indent=1) + "\n").encode())
    else:
        golden = Golden.from_json(read_object(path, LIMIT), str(path))
    rates = by_depth(rates_in(Path(plan.log))) if plan.log else None
    parts = None if rates is None else log_parting(golden, rates)
    now = parted = None
    if not is_new or any(
        str(request.options.get(name, READABLE[name])) != READABLE[name] for name in READABLE
    ):
        cell, loaded = load_models(request)
        now = measured(cell, loaded, golden.passages)
        check_same(golden, now, path)
        parted = parting(golden, now)
    if golden.depths and golden.depths[0].acceptance < FAINT:
        log.info(
            f"note: acceptance at depth 1 is {golden.depths[0].acceptance:.3f}, hardly above "
            f"chance. "
            "Check that the head was made for this target, and which layers it reads"
        )
    log_rates = None if rates is None else tuple(rates)
    return HeadFound(golden, path, is_new, now, parted, log_rates, parts)


def load_models(request: CellRequest) -> tuple[Cell, Loaded]:
    """Return the resolved cell of a request, and its models.

    Raises:
        SpsError: models that cannot be loaded.
    """
    cell, loaded, model_cache = load_cell(prepare_request(request), request.access)
    note_default_drafters([cell], request.options)
    Models(model_cache)(cell)  # logs warnings
    return cell, loaded


def readable(request: CellRequest) -> CellRequest:
    """Return the request with the dtype and the engine of a measurement of golden acceptance."""
    has_draft = request.cell.models.draft is not None
    readable = {
        name: value
        for name, value in READABLE.items()
        if has_draft or not name.startswith("draft_")
    }
    return CellRequest.of({**request.options, **readable, **asdict(request.access)})


def texts_of(cell: Cell, loaded: Loaded, plan: HeadAudit) -> list[Passage]:
    """Return prompts with the target's own continuations."""
    check_weights(cell, "sps verify head")
    short = cell.but(max_new_tokens=plan.tokens)
    tasks = [Spec.of_task(name) for name in plan.task] or TASKS
    prompts = prompts_of(short, loaded, tasks, plan.prompts)
    if not prompts:
        raise DataError("no prompt fits the context (`task`): expected one. Name another task")
    alone = plain_cell(short)
    return [
        Passage(p.name, p.ids, generate(alone, loaded, p.ids, p.name, 0).tokens, ())
        for p in prompts
    ]


def measured(cell: Cell, loaded: Loaded, passages: Sequence[Passage]) -> Golden:
    """Measure the expected acceptance of a pair along some texts."""
    check_weights(cell, "sps verify head")
    if plan_of(cell.method.drafter).tree:
        raise UsageError(
            f"`drafter` {cell.method.drafter}: expected one that drafts chains. Leave out its shape"
        )
    depth = cell.k
    if not depth:
        raise UsageError(
            "`k`: expected K of 1 or more, the depth up to which acceptance is measured"
        )
    done = tuple(
        Passage(
            passage.name,
            passage.prompt,
            passage.tokens,
            tuple(map(tuple, along(cell, loaded, passage.prompt, passage.tokens, depth))),
        )
        for passage in passages
    )
    target, draft = cell.models.target, cell.models.draft
    dtypes = f"{loaded.target.dtype}".removeprefix("torch.")
    head = "" if loaded.head is None else str(loaded.head.description)
    return Golden(
        target=str(target),
        head=str(draft or cell.method.drafter),
        kind=head,
        drafter=str(cell.method.drafter),
        digests=model_digests(cell),
        sampling={
            **cell.sampling.recorded_warp,
            "k": depth,
        },
        run={"dtype": dtypes, "engine": str(target.engine)},
        passages=done,
    )


def check_same(golden: Golden, now: Golden, path: Path) -> None:
    """Check that a golden file belongs to this pair and these settings.

    Raises:
        DataError: the file has another pair or other settings.
    """
    for name in ("digests", "sampling", "drafter"):
        one, two = getattr(golden, name), getattr(now, name)
        if one != two:
            raise DataError(
                f"{path} is of another pair: {name} {one} there, {two} now. Name another file with "
                "`golden`, or remove it"
            )


def log_parting(golden: Golden, log: Sequence[float]) -> int | None:
    """Return the first depth at which another engine's acceptance differs.

    The other engine has other texts, so the tolerance exceeds rounding: `NEAR` plus four standard
    errors of a share over the positions of the golden texts.
    """
    for depth, logged in zip(golden.depths, log, strict=False):
        a = depth.acceptance
        if abs(a - logged) > NEAR + 4 * (max(a * (1 - a), 0.01) / depth.places) ** 0.5:
            return depth.depth
    return None

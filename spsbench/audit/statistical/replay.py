"""Audit of a run on disk: its rescored records."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spsbench.audit.statistical.audit import Audit, Finding
from spsbench.audit.statistical.betting import LEVEL
from spsbench.audit.statistical.examine import Text, rounding
from spsbench.audit.statistical.greedy import Greedy, greedy_records
from spsbench.audit.statistical.jobs import doubt, examiner_of, generate, plain_cell, text_of
from spsbench.benchmark.run_prompts import RunPrompts
from spsbench.errors import DataError, UsageError
from spsbench.models.cache import Loaded
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record
from spsbench.store.manifest import Manifest
from spsbench.store.records import records

log = logging.getLogger(__name__)

CALIBRATION = 8  # texts for the measurement of rounding
CONTROL_TOKENS = 2_000  # ArS tokens generated if the run has none
CONTROL_TEXTS = 200

Models = Callable[[Cell], Loaded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result for one cell of a run."""

    cell: Cell
    result: Finding | Greedy
    control: str  # source of the texts in the ArS arm
    failures: int  # failed records, which are not audited
    records: int  # all records, failures included


def replay(
    folder: Path,
    models: Models,
    *,
    level: float = LEVEL,
    bias: float | None = None,
    most: int | None = None,
) -> Iterator[Replayed]:
    """Audit every speculative cell of a run, up to `most` tokens of each arm.

    The level is for the whole run and is divided among the cells.

    Raises:
        SpsError: no run, a damaged run, nothing to audit, or prompts of another run.
    """
    manifest = Manifest.load(folder)
    cells = manifest.configurations(folder)
    by_cell: dict[str, list[Record]] = {name: [] for name in cells}
    for record in records(folder):
        by_cell.setdefault(record.cell, []).append(record)
    speculative = [name for name, c in cells.items() if c.k != 0 and by_cell[name]]
    if not speculative:
        raise UsageError(f"nothing to verify ({folder}): expected records of speculative sampling")
    if any(cells[name].random for name in speculative):
        raise UsageError(f"random weights ({folder}): expected a run whose text has a meaning")
    masked = {name for name in speculative if any(r.masks is not None for r in by_cell[name])}
    if masked or any(cells[name].constrained for name in speculative):
        raise UsageError(
            f"texts under a constraint ({folder}): expected free texts, since their laws are "
            "audited without masks. docs/structured.md says what holds masked ones"
        )
    prompts = RunPrompts(manifest, cells, models, folder)
    for name in speculative:
        cell = cells[name]
        log.info(f"auditing {cell.noise_key} at temperature {cell.temperature:g} ({name})")
        succeeded = [r for r in by_cell[name] if r.error is None]
        failures = len(by_cell[name]) - len(succeeded)
        if any(record.text and not record.tokens for record in succeeded):
            raise DataError(
                f"no token ids ({folder}, {cell.decoder}): expected an engine that tells "
                "them. Audit it with `sps check`"
            )
        texts = [text_of(prompts(cell, r), r, f"{r.sample} #{r.repeat}") for r in succeeded]
        if cell.temperature == 0:
            greedy = greedy_records(cell, models(cell), texts)
            yield Replayed(
                cell=cell, result=greedy, control="", failures=failures, records=len(by_cell[name])
            )
            continue
        base = [other for other, c in cells.items() if c.k == 0 and c.same_work(cell)]
        plain = [r for other in base for r in by_cell[other] if r.error is None]
        control = "of the run"
        ars = [text_of(prompts(cell, r), r, f"{r.sample} #{r.repeat}") for r in plain]
        if not ars:
            control = "made for this audit: the run has none"
            ars = list(_generated(cell, models(cell), texts))
        finding = audit_texts(
            cell,
            models(cell),
            ars,
            texts,
            level=level / len(speculative),
            bias=bias,
            most=most,
        )
        yield Replayed(
            cell=cell,
            result=finding,
            control=control,
            failures=failures,
            records=len(by_cell[name]),
        )


def audit_texts(
    cell: Cell,
    loaded: Loaded,
    ars: Sequence[Text],
    sps: Sequence[Text],
    *,
    level: float = LEVEL,
    bias: float | None = None,
    most: int | None = None,
) -> Finding:
    """Audit existing texts, alternating between the arms."""
    began = time.perf_counter()
    examiner = examiner_of(cell, loaded)
    rounded = rounding(loaded.target, examiner, [*ars[:CALIBRATION]] or [*sps[:CALIBRATION]])
    examiner = replace(examiner, edge=rounded.edge)
    audit = Audit(rounded.band, level, bias)
    for arm, texts in ((audit.ars, ars), (audit.sps, sps)):
        for text in texts:
            if arm.alarmed or (most is not None and arm.tokens >= most):
                break
            evidence, impossible = examiner.examine(text)
            arm.take([evidence], impossible)
    alarmed = audit.ars.alarmed or audit.sps.alarmed
    reason = doubt(examiner, loaded, ars) if alarmed else ""
    return audit.finding(time.perf_counter() - began, reason)


def _generated(cell: Cell, loaded: Loaded, like: Sequence[Text]) -> Iterator[Text]:
    """Yield fresh ArS texts of the same prompts, to test for an alarm without drafting."""
    plain, count = plain_cell(cell), 0
    for text in like[:CONTROL_TEXTS]:
        fresh = generate(plain, loaded, text.prompt, "control", count)
        count += len(fresh.tokens)
        yield fresh
        if count >= CONTROL_TOKENS:
            return

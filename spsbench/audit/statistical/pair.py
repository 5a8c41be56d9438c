"""Audit of a pair: texts are generated until a bias is found, or one of that size is ruled out."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from spsbench.audit.statistical.audit import Audit, Finding
from spsbench.audit.statistical.betting import LEVEL
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.examine import rounding
from spsbench.audit.statistical.greedy import Greedy, compare, wrong_token
from spsbench.audit.statistical.jobs import (
    Done,
    Prompt,
    Workbench,
    doubt,
    generate,
    jobs,
    perform_in_order,
    plain_cell,
    plain_jobs,
)
from spsbench.models.cache import Loaded
from spsbench.models.tokenizers import encode
from spsbench.plugins import make
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.spec import Spec
from spsbench.tasks.drawing import take_samples

log = logging.getLogger(__name__)

TASKS = (Spec("humaneval"), Spec("xsum", (("data", "mini"), ("count", 40))))
CALIBRATION = 4  # prompts for the measurement of rounding
OFTEN = 2_000  # tokens between two progress messages
REPEATED = 3  # greedy prompts that are generated twice


def prompts_of(
    cell: Cell,
    loaded: Loaded,
    tasks: Sequence[Spec],
    most: int,
    sample_seed: int | None = None,
) -> list[Prompt]:
    """Return prompts that fit the context with their output, from each task in turn.

    Each task gives its first prompts, or those that `sample_seed` draws.
    """
    room = None if loaded.limit is None else loaded.limit - cell.max_new_tokens

    def fits(prompt: str) -> bool:
        return room is None or len(encode(loaded.tokenizer, prompt)) <= room

    by_task: list[list[Prompt]] = []
    for spec in tasks:
        samples = take_samples(make("tasks", spec).samples, fits, most, sample_seed)
        prompts = [Prompt(s.id, tuple(encode(loaded.tokenizer, s.prompt))) for s in samples]
        by_task.append([p for p in prompts if room is None or len(p.ids) <= room])
    longest = max(map(len, by_task), default=0)
    mixed = [of_task[i] for i in range(longest) for of_task in by_task if i < len(of_task)]
    return mixed[:most]


def audit_pair(
    cell: Cell,
    loaded: Loaded,
    prompts: Sequence[Prompt],
    *,
    bias: float,
    level: float = LEVEL,
    most: int,
    workers: int = 1,
    access: Access = Access(),  # frozen
) -> Finding:
    """Generate ArS and SpS texts in turn until the audit is decided, or `most` SpS tokens long."""
    began = time.perf_counter()
    bench = Workbench.of(cell, loaded)
    plain = plain_cell(cell)
    calibration = prompts[:CALIBRATION] if loaded.target.dtype.itemsize < 4 else []
    texts = [generate(plain, loaded, p.ids, p.name, 1 << 20) for p in calibration]
    rounded = rounding(loaded.target, bench.examiner, texts)
    bench = replace(bench, examiner=replace(bench.examiner, edge=rounded.edge))
    audit = Audit(rounded.band, level, bias)
    said = 0

    def receive(done: Done) -> bool:
        """Add a text to its arm; return whether the audit is decided."""
        nonlocal said
        arm = audit.sps if done.job.speculative else audit.ars
        arm.take([done.evidence], done.impossible)
        if audit.decided or audit.sps.tokens >= most:
            return True
        if audit.sps.tokens - said >= OFTEN:
            said = audit.sps.tokens
            claim = audit.claim()
            power = "" if claim is None else f", would have caught a bias of {claim:.2g}"
            log.info(f"{said:,} tokens{power}, {time.perf_counter() - began:.0f} s")
        return False

    def receive_control(done: Done) -> bool:
        """Add an ArS text; return whether ArS has as many tokens as SpS."""
        if audit.ars.alarmed or audit.ars.tokens >= audit.sps.tokens:
            return True
        audit.ars.take([done.evidence], done.impossible)
        return False

    perform_in_order(bench, jobs(prompts), receive, workers=workers, access=access)
    if audit.sps.alarmed:  # an alarm needs a control of the same length
        perform_in_order(
            bench, plain_jobs(prompts), receive_control, workers=workers, access=access
        )
    reason = ""
    if audit.ars.alarmed or audit.sps.alarmed:
        again = [generate(plain, loaded, p.ids, p.name, 0) for p in prompts[:CALIBRATION]]
        reason = doubt(bench.examiner, loaded, again)
    return audit.finding(time.perf_counter() - began, reason)


def greedy_pair(cell: Cell, loaded: Loaded, prompts: Sequence[Prompt]) -> Greedy:
    """Compare each prompt under greedy ArS and SpS: identical, a rounding tie, or a bug."""
    began = time.perf_counter()
    plain, result = plain_cell(cell), Greedy()
    for number, prompt in enumerate(prompts):
        ars = generate(plain, loaded, prompt.ids, prompt.name, 0)
        sps = generate(cell, loaded, prompt.ids, prompt.name, 0)
        k = max(sps.drafted, default=0)
        comparison = compare(loaded, prompt.ids, ars.tokens, sps.tokens, k, prompt.name)
        result.compared.append(comparison)
        if number < REPEATED:
            again = generate(plain, loaded, prompt.ids, prompt.name, 1)
            result.repeated &= again.tokens == ars.tokens
            planted = wrong_token(loaded, prompt.ids, ars.tokens, k)
            result.planted &= planted is None or planted.kind is GreedyKind.BUG
        if comparison.kind is not GreedyKind.IDENTICAL:
            log.info(f"{prompt.name}: {comparison.kind.value}")
    result.seconds = time.perf_counter() - began
    return result

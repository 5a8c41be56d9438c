"""`sps score` at work: programs, a level that holds, verdicts, figures."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.cli.notes import note, say
from spsbench.cli.progress import progress
from spsbench.cli.report.show import publish
from spsbench.cli.safe import one_line, write
from spsbench.errors import DataError, Exit, UsageError
from spsbench.hardware.environment import shadows, usable_cores
from spsbench.hardware.sizes import clock
from spsbench.reports.conclude import conclude
from spsbench.sandbox.choice import LevelFinding, Name, choose
from spsbench.sandbox.isolation import IMAGE
from spsbench.sandbox.levels import Outcome, ProgramLimits, ProgramVerdict
from spsbench.settings.execution import HERE, Crew
from spsbench.settings.options import parse_range
from spsbench.store.atomic import replace_file
from spsbench.store.interrupt import graceful
from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.programs import figures
from spsbench.tasks.programs.generated import Batch, Program, ProgramSample, of_file, of_run
from spsbench.tasks.programs.log import NAME, VerdictLog
from spsbench.tasks.programs.pool import judge
from spsbench.tasks.programs.samples import with_results

K_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for."""

    target: Path
    sandbox: Name
    limits: ProgramLimits
    image: str | None
    understood: bool
    workers: int | None
    ks: str
    allow_partial: bool
    overwrite: bool
    json: bool
    crew: Crew = Crew()


class Judging:
    """Counts verdicts, for the bar."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._found: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, verdict: ProgramVerdict) -> None:
        """Count one."""
        self.done += 1
        self._found[str(verdict)] += 1

    def __str__(self) -> str:
        """`312/800, passed 120, failed 192, 0:04:10 to go`."""
        parts = [f"{self.done}/{self.total}", *(f"{v} {n}" for v, n in self._found.items())]
        if self.done:
            left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
            parts.append(f"{clock(left)} to go")
        return ", ".join(parts)


def carry_out(order: Order) -> int:
    """Judge what is missing and show what there is; the exit code.

    Raises:
        SpsError: a target that cannot be used, or no sandbox that holds.
    """
    ks = _ks(order.ks)
    task = HumanEval()
    for warning in shadows(Path.cwd()):
        note(warning)
    samples: list[ProgramSample] = []
    if order.target.is_dir():
        batch = of_run(order.target, task.problems)
        log = order.target / NAME
    else:
        samples, batch = of_file(order.target, task.problems)
        log = order.target.with_name(f"{order.target.name}_{NAME}")
    if batch.partial and not order.allow_partial:
        raise DataError(
            f"{batch.partial} problems ({order.target}): expected a program of every problem. "
            "Finish the file or run, or pass --allow-partial, which prints no pass@k"
        )
    held = choose(
        order.sandbox, order.limits, understood=order.understood, image=order.image or IMAGE
    )
    if held.name == "none":
        note("nothing is isolated: these programs run with your rights")
    settings = settings_of(order, held, task, batch.rule)
    with VerdictLog(log, settings, overwrite=order.overwrite) as verdicts, graceful() as interrupt:
        _judge(order, held, batch, verdicts, lambda: interrupt.requested)
        if interrupt.requested:
            again = shlex.join(["sps", *(a for a in sys.argv[1:] if a != "--overwrite")])
            say(f"stopped after {len(verdicts.judged)} verdicts. Go on with: {again}")
            return interrupt.code
        own = [verdicts.judged[program.key] for program in batch.programs]
        if samples:
            results = order.target.with_name(f"{order.target.name}_results.jsonl")
            replace_file(results, with_results(samples, verdicts.judged))
            say(f"results are in {results}")
    found = {"target": order.target.name, "settings": settings, "partial": batch.partial or None}
    if samples:
        found |= figures.plain(own, () if batch.partial else ks)
    else:
        cells = list(dict.fromkeys(each.cell for each in own))
        by_cell = {cell: [each for each in own if each.cell == cell] for cell in cells}
        chosen = () if batch.partial else ks
        found["cells"] = {cell: figures.plain(each, chosen) for cell, each in by_cell.items()}
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    place = log.with_name(log.name.removesuffix(NAME) + "scoring.json")
    replace_file(place, text.encode("ascii"))
    if order.json:
        write(text)
    elif samples:
        lines = [f"{order.target.name}: {len(own)} programs of {batch.problems} problems"]
        lines += [figures.told(figures.counts(own))]
        lines += [batch.partial] if batch.partial else figures.shown(figures.pass_at(own, ks))
        write("".join(f"{one_line(line)}\n" for line in [*lines, figures.described(settings)]))
    if not samples:
        made = conclude(order.target)
        if not order.json:
            publish(made, "table")
    return Exit.OK


def settings_of(order: Order, held: LevelFinding, task: HumanEval, rule: str) -> dict[str, Any]:
    """All that verdicts depend on: those made by other settings are never put among them."""
    level = held.level
    return {
        "task": task.title,
        "rule": rule,
        "sandbox": held.name,
        "held": held.words,
        "flags": dict(level.flags) if level else {},
        "limits": order.limits.described(),
        "interpreter": held.python,
    }


def _judge(
    order: Order, held: LevelFinding, batch: Batch, log: VerdictLog, stop: Callable[[], bool]
) -> None:
    missing = log.missing(batch.programs)
    if held.level is None or not missing:
        return
    workers = order.workers or usable_cores()
    here = order.crew.kind == HERE
    where = f"{workers} at a time" if here else f"on {order.crew.on}"
    say(f"{len(missing)} programs, {where}, sandbox {held.name} ({held.words})")
    pace = Judging(len(missing))
    with progress(pace) as shown:

        def told(program: Program, outcome: Outcome) -> None:
            log.append(program, outcome)
            pace.add(outcome.verdict)
            shown.show()

        if here:
            judge(missing, held.level, order.limits, workers=workers, told=told, stop=stop)
            return

        from spsbench.distributed.programs import Sandboxed, judge_on

        how = Sandboxed(
            sandbox=order.sandbox,
            limits=order.limits,
            understood=order.understood,
            image=order.image or IMAGE,
        )
        judge_on(order.crew, how, held, missing, told=told, stop=stop)


def _ks(text: str) -> Sequence[int]:
    try:
        return parse_range(text, low=1, high=K_MOST)
    except ValueError as error:
        raise UsageError(f"--k {error}") from error

"""Scoring: run the programs of a run, or of a file of samples, and compute pass@k.

Programs run in parallel; those that only the wall clock ended run again, alone.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any

from spsbench.errors import DataError
from spsbench.extensions.sandbox import runner
from spsbench.extensions.sandbox.choice import Name, choose_level
from spsbench.extensions.sandbox.levels import BusyError, Level, ProgramLimits
from spsbench.extensions.sandbox.runner import retry_while_busy, run_program
from spsbench.hardware.environment import shadows, usable_cores
from spsbench.hardware.files import clock
from spsbench.messages import ignore
from spsbench.reports.reporter import Report
from spsbench.reports.run_tables import conclude_run
from spsbench.settings.options import reads_numbers
from spsbench.store.atomic import replace_file
from spsbench.tasks import program_log
from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.program_log import NAME, VerdictLog, with_results
from spsbench.tasks.program_texts import Program, of_run, read_programs
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

log = logging.getLogger(__name__)

K_MOST = 10_000
Take = Callable[[Program, Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOptions:
    """Options of a scoring: the programs, the sandbox, and the workers."""

    target: Path  # folder of a run, or a file of samples
    sandbox: Name = "auto"
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    understood: bool = False  # the user accepts that sandbox `none` isolates nothing
    workers: int | None = None
    ks: str = "1,10,100"
    allow_partial: bool = False
    overwrite: bool = False


class JudgingProgress:
    """Progress of a scoring."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._found: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, verdict: ProgramVerdict) -> None:
        """Count one verdict."""
        self.done += 1
        self._found[str(verdict)] += 1

    def __str__(self) -> str:
        """Return `312/800, passed 120, failed 192, 0:04:10 to go`."""
        parts = [f"{self.done}/{self.total}", *(f"{v} {n}" for v, n in self._found.items())]
        if self.done:
            left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
            parts.append(f"{clock(left)} to go")
        return ", ".join(parts)


class Scoring:
    """A scoring: reads programs, judges those without a verdict, and computes pass@k.

    Raises:
        SpsError: an unusable target, or no working sandbox.
    """

    def __init__(self, options: ScoringOptions) -> None:
        self.options, target = options, options.target
        self._ks = reads_numbers(1, K_MOST)(options.ks, "`k`")
        task = HumanEval()
        for warning in shadows(Path.cwd()):
            log.info(f"note: {warning}")
        self.is_run = target.is_dir()
        self.batch = (of_run if self.is_run else read_programs)(target, task.problems)
        self._log = target / NAME if self.is_run else target.with_name(f"{target.name}_{NAME}")
        if self.batch.partial and not options.allow_partial:
            raise DataError(
                f"{self.batch.partial} problems ({target}): expected a program of every problem. "
                "Finish the file or run, or pass `allow_partial`, which prints no pass@k"
            )
        self._held = held = choose_level(
            options.sandbox, options.limits, understood=options.understood
        )
        if held.name == "none":
            log.info("note: nothing is isolated: these programs run with your rights")
        self.settings: dict[str, Any] = {  # verdicts of other settings are kept apart
            "task": task.title,
            "rule": self.batch.rule,
            "sandbox": held.name,
            "held": held.words,
            "flags": dict(held.level.flags) if held.level else {},
            "limits": options.limits.described(),
            "interpreter": held.python,
        }
        self.judged: dict[Any, Any] = {}

    def judge(
        self,
        watch: Callable[[JudgingProgress], None] = ignore,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Judge the programs that have no verdict yet, until all have one or `stop` is true."""
        options, held = self.options, self._held
        with VerdictLog(self._log, self.settings, overwrite=options.overwrite) as verdicts:
            missing = verdicts.missing(self.batch.programs)
            if held.level is not None and missing:
                count, place = options.workers or usable_cores(), f"{held.name} ({held.words})"
                log.info(f"{len(missing)} programs, {count} at a time, sandbox {place}")
                watch(pace := JudgingProgress(len(missing)))

                def report(program: Program, outcome: Outcome) -> None:
                    verdicts.add(program, outcome)
                    pace.add(outcome.verdict)
                    watch(pace)

                judge_programs(
                    missing, held.level, options.limits, workers=count, report=report, stop=stop
                )
            self.judged = dict(verdicts.judged)
        if not self.is_run and not stop():
            results = options.target.with_name(f"{options.target.name}_results.jsonl")
            replace_file(results, with_results(self.batch, self.judged))
            log.info(f"results are in {results}")

    def write_figures(self) -> str:
        """Write the figures to the folder of the verdicts, and return them as JSON."""
        target, batch = self.options.target, self.batch
        judged = [self.judged[program.key] for program in batch.programs]
        ks = () if batch.partial else self._ks
        figures: dict[str, Any] = {"target": target.name, "settings": self.settings}
        figures["partial"] = batch.partial or None
        if not self.is_run:
            figures |= program_log.counts_json(judged, ks)
        else:
            cells = list(dict.fromkeys(one.cell for one in judged))
            by_cell = {cell: [one for one in judged if one.cell == cell] for cell in cells}
            figures["cells"] = {
                cell: program_log.counts_json(part, ks) for cell, part in by_cell.items()
            }
        text = json.dumps(figures, indent=1, allow_nan=False) + "\n"
        place = self._log.with_name(self._log.name.removesuffix(NAME) + "scoring.json")
        replace_file(place, text.encode("ascii"))
        return text

    def lines(self) -> list[str]:
        """Return the figures of a file of samples, one line each."""
        batch = self.batch
        judged = [self.judged[program.key] for program in batch.programs]
        lines = [f"{self.options.target.name}: {len(judged)} programs of {batch.problems} problems"]
        lines += [program_log.format_counts(program_log.counts(judged))]
        estimates = program_log.pass_at(judged, () if batch.partial else self._ks)
        lines += [batch.partial] if batch.partial else program_log.estimate_lines(estimates)
        return [*lines, program_log.describe_settings(self.settings)]

    def report(self) -> Report:
        """Return the report of a run with recomputed scores."""
        return conclude_run(self.options.target)


def judge_programs(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    *,
    workers: int,
    report: Take,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run each program and report its outcome, in the order in which programs end.

    Load on the machine must not cost a program its pass: a program that ran out of wall-clock time
    with processor time left runs once more when no other runs, and that verdict is final.

    Raises:
        SandboxError: the sandbox failed; programs without a reported outcome are not judged.
    """
    again: list[Program] = []

    def take(program: Program, outcome: Outcome) -> None:
        if outcome.wall_only:
            again.append(program)
        else:
            report(program, outcome)

    try:
        _side_by_side(programs, level, limits, workers, take, stop)
        for program in again:
            if stop():
                return
            report(program, run_program(level, program.source, limits))
    finally:
        runner.wait_for_orphans()


def _side_by_side(
    programs: Iterable[Program],
    level: Level,
    limits: ProgramLimits,
    workers: int,
    take: Take,
    stop: Callable[[], bool],
) -> None:
    """Pass each program and its outcome to `take` as it ends; none starts after `stop`."""
    waiting = iter(programs)
    running: dict[Future[Outcome], Program] = {}
    # The kernel ends a program with the thread that started it, so the pool's threads stay alive.
    with retry_while_busy(lambda: _start_threads(workers)) as pool:
        try:
            while True:
                room = 0 if stop() else 2 * workers - len(running)
                for program in islice(waiting, room):
                    running[pool.submit(run_program, level, program.source, limits)] = program
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    take(running.pop(done), done.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _start_threads(workers: int) -> ThreadPoolExecutor:
    """Return a pool with all threads started; later the system may have no room for one."""
    pool, together = ThreadPoolExecutor(workers), Barrier(workers)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(workers)]:
            waiting.result()
    except RuntimeError as error:  # Python's error for a thread that cannot start
        together.abort()
        pool.shutdown()
        raise BusyError(f"{workers} at a time: {error}") from error
    return pool

"""Scoring: run the programs of a run, or of a file of samples, and compute pass@k.

Programs run in parallel; those that only the wall clock ended run again, alone.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any

from spsbench.errors import DataError
from spsbench.extensions.sandbox import runner
from spsbench.extensions.sandbox.choice import choose_level
from spsbench.extensions.sandbox.levels import BusyError, Level, ProgramLimits
from spsbench.extensions.sandbox.options import ScoringOptions
from spsbench.extensions.sandbox.runner import retry_while_busy, run_program
from spsbench.hardware.environment import shadows, usable_cores
from spsbench.hardware.files import clock
from spsbench.messages import ignore
from spsbench.store.atomic import replace_file
from spsbench.tasks import program_log
from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.program_log import NAME, VerdictLog, with_results
from spsbench.tasks.program_texts import Program, of_run, read_programs
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

log = logging.getLogger(__name__)

Take = Callable[[Program, Outcome], None]


class JudgingProgress:
    """Progress of a scoring."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, verdict: ProgramVerdict) -> None:
        """Count one verdict."""
        self.done += 1
        self._counts[str(verdict)] += 1

    def __str__(self) -> str:
        """Return `312/800, passed 120, failed 192, 0:04:10 to go`."""
        parts = [f"{self.done}/{self.total}", *(f"{v} {n}" for v, n in self._counts.items())]
        if self.done:
            left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
            parts.append(f"{clock(left)} to go")
        return ", ".join(parts)


class Scoring:
    """A scoring: reads programs, judges those without a verdict, and computes pass@k.

    `target` is the folder of a run, or a file of samples. Raises SpsError for an unusable target,
    or no working sandbox.
    """

    def __init__(self, target: Path, options: ScoringOptions) -> None:
        self.target, self.options = target, options
        self.limits = ProgramLimits(options.timeout, options.memory)
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
        understood = options.i_understand_this_runs_untrusted_code
        self._level = choose_level(options.sandbox, self.limits, understood=understood)
        if self._level.name == "none":
            log.info("note: nothing is isolated: these programs run with your rights")
        self.settings: dict[str, Any] = {  # verdicts of other settings are kept apart
            "task": task.title,
            "rule": self.batch.rule,
            "sandbox": self._level.name,
            "held": self._level.protection,
            "flags": dict(self._level.flags),
            "limits": asdict(self.limits),
            "interpreter": self._level.python.partition(" ")[0],
        }
        self.judged: dict[Any, Any] = {}  # key of a program -> its result

    def judge(
        self,
        watch: Callable[[JudgingProgress], None] = ignore,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Judge the programs that have no verdict yet, until all have one or `stop` is true.

        Verdicts are logged at once, and shown to `watch`; `judged` is set at the end. Of a file of
        samples, write FILE_results.jsonl next to it, unless stopped. SandboxError: the sandbox
        fails; others as of `VerdictLog`.
        """
        level = self._level
        with VerdictLog(self._log, self.settings, overwrite=self.options.overwrite) as verdicts:
            if missing := verdicts.missing(self.batch.programs):
                count = self.options.workers or usable_cores()
                place = f"{level.name} ({level.protection})"
                log.info(f"{len(missing)} programs, {count} at a time, sandbox {place}")
                watch(pace := JudgingProgress(len(missing)))

                def report(program: Program, outcome: Outcome) -> None:
                    verdicts.add(program, outcome)
                    pace.add(outcome.verdict)
                    watch(pace)

                judge_programs(missing, level, self.limits, workers=count, report=report, stop=stop)
            self.judged = dict(verdicts.judged)
        if not self.is_run and not stop():
            results = self.target.with_name(f"{self.target.name}_results.jsonl")
            replace_file(results, with_results(self.batch, self.judged))
            log.info(f"results are in {results}")

    @property
    def _results(self) -> list[Any]:
        """Return the results of all programs, in their order; KeyError: one is not judged."""
        return [self.judged[program.key] for program in self.batch.programs]

    def write_figures(self) -> str:
        """Write and return scoring.json, by cell, or FILE_scoring.json; no pass@k if partial."""
        results, ks = self._results, () if self.batch.partial else self.options.k
        figures: dict[str, Any] = {"target": self.target.name, "settings": self.settings}
        figures["partial"] = self.batch.partial or None
        if not self.is_run:
            figures |= program_log.counts_json(results, ks)
        else:
            cells = dict.fromkeys(result.cell for result in results)
            by_cell = {cell: [r for r in results if r.cell == cell] for cell in cells}
            figures["cells"] = {
                cell: program_log.counts_json(part, ks) for cell, part in by_cell.items()
            }
        text = json.dumps(figures, indent=1, allow_nan=False) + "\n"
        path = self._log.with_name(self._log.name.removesuffix(NAME) + "scoring.json")
        replace_file(path, text.encode("ascii"))
        return text

    def lines(self) -> list[str]:
        """Return lines on a file of samples: programs, verdicts, pass@k or `partial`, settings."""
        batch, results = self.batch, self._results
        lines = [f"{self.target.name}: {len(results)} programs of {batch.problems} problems"]
        lines += [program_log.format_counts(program_log.counts(results))]
        estimates = program_log.pass_at(results, () if batch.partial else self.options.k)
        lines += [batch.partial] if batch.partial else program_log.estimate_lines(estimates)
        return [*lines, program_log.describe_settings(self.settings)]


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

    Once `stop()` is True, no further program is queued; up to twice `workers` that are still run.
    Load on the machine must not cost a program its pass: a program that ran out of wall-clock time
    with processor time left runs once more when no other runs (unless stopped), and that verdict is
    final. SandboxError: the sandbox failed; programs without a reported outcome are not judged.
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
    """Run programs, `workers` at a time, and `take` each here with its outcome as it ends.

    After `stop()` none is queued beyond the `2 * workers` that may be. BusyError: no room for the
    threads. The error of a sandbox comes after those that run have ended; they are not taken.
    """
    waiting = iter(programs)
    running: dict[Future[Outcome], Program] = {}
    # The kernel ends a program with the thread that started it, so the pool's threads stay alive.
    with retry_while_busy(lambda: _start_threads(workers)) as pool:
        try:
            while True:
                for program in islice(waiting, 0 if stop() else 2 * workers - len(running)):
                    running[pool.submit(run_program, level, program.source, limits)] = program
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    take(running.pop(done), done.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _start_threads(workers: int) -> ThreadPoolExecutor:
    """Return a pool with all threads started; BusyError: the system has no room for one."""
    pool, together = ThreadPoolExecutor(workers), Barrier(workers)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(workers)]:
            waiting.result()
    except RuntimeError as error:  # Python's error for a thread that cannot start
        together.abort()
        pool.shutdown()
        raise BusyError(f"{workers} at a time: {error}") from error
    return pool

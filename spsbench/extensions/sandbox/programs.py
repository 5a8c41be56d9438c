"""Programs judged by workers: `sps score` on other machines, each with its own tested sandbox."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spsbench.extensions.sandbox.choice import LevelFinding, Name, choose
from spsbench.extensions.sandbox.judging import judge
from spsbench.extensions.sandbox.levels import ProgramLimits, SandboxError
from spsbench.hardware.environment import usable_cores
from spsbench.settings.execution import Workers
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome
from spsbench.workers.environment import check_environment
from spsbench.workers.map_units import BrokenOffError, map_units
from spsbench.workers.work import Work

log = logging.getLogger(__name__)

MOST = 32  # programs of a unit, which a worker runs side by side
SHARE = 8  # units, at least, of what there is

Report = Callable[[Program, Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Sandboxed:
    """The isolation of programs."""

    sandbox: Name
    limits: ProgramLimits
    understood: bool
    image: str

    def held(self) -> LevelFinding:
        """Return the level, once its self-test has held here.

        Raises:
            SandboxError: none does.
        """
        return choose(self.sandbox, self.limits, understood=self.understood, image=self.image)


def judge_on(
    workers: Workers,
    how: Sandboxed,
    held: LevelFinding,
    programs: Sequence[Program],
    *,
    report: Report,
    stop: Callable[[], bool],
) -> None:
    """Run each program on some worker and pass its outcome to `told`.

    Args:
        held: what holds here: verdicts of other sandboxes are not put among its own.

    Raises:
        MismatchError: a worker's sandbox or interpreter is another.
        BrokenOffError: a program without a verdict; the others have one.
        SpsError: no worker, or none that can isolate a program.
    """
    lost = 0

    def fail(program: Program, error: str) -> None:
        nonlocal lost
        lost += 1
        log.info(f"no verdict on {'/'.join(map(str, program.key)).strip('/')}: {error}")

    def take(unit: Unit, found: Verdicts) -> None:
        for program, outcome in zip(unit, found, strict=True):
            if isinstance(outcome, Outcome):
                report(program, outcome)
            else:
                fail(program, outcome)

    def give_up(unit: Unit, error: str) -> None:
        for program in unit:
            fail(program, error)

    work = Judgements(how=how, expected=conditions(held))
    map_units(workers, work, units_of(programs), take=take, give_up=give_up, stop=stop)
    if lost:
        raise BrokenOffError(
            f"{lost} programs without a verdict: expected one of each. Continue with the same "
            f"command"
        )


Unit = tuple[Program, ...]
Verdicts = list[Outcome | str]
"""The outcome of each program, or the reason why there is none."""


def units_of(programs: Sequence[Program]) -> Iterator[Unit]:
    """Yield programs in units that several workers can share."""
    size = max(1, min(MOST, len(programs) // SHARE))
    for first in range(0, len(programs), size):
        yield tuple(programs[first : first + size])


def conditions(held: LevelFinding) -> dict[str, Any]:
    """Return what verdicts depend on beside the programs, which must be the same everywhere."""
    flags: Mapping[str, Any] = held.level.flags if held.level else {}
    return {
        "sandbox": held.name,
        "interpreter": held.python,
        **{f"flags.{name}": value for name, value in flags.items()},
    }


@dataclass(frozen=True, kw_only=True)
class Judgements(Work):
    """Verdicts of a worker, whose sandbox is tested on its own machine before any program is run.

    As many programs run at a time as the worker has threads, or else as there are cores.

    Args:
        expected: what verdicts depend on, on the driver.
    """

    how: Sandboxed
    expected: Mapping[str, Any]

    def prepare(self) -> None:
        """Test the sandbox.

        Raises:
            SandboxError: no sandbox holds here.
            MismatchError: another one, or another interpreter.
        """
        check_environment(self.expected, conditions(self._held))

    def __call__(self, unit: Unit) -> Verdicts:
        """Judge programs side by side; after an error of the sandbox, what is left one by one."""
        level = self._held.level
        if level is None:
            raise SandboxError("no sandbox: expected one. See `sps doctor` there")
        found: dict[Program, Outcome | str] = {}
        limits, workers = self.how.limits, self.threads or usable_cores()
        try:
            judge(unit, level, limits, workers=workers, report=found.__setitem__)
        except SandboxError:
            for program in unit:
                if program not in found:
                    try:
                        judge([program], level, limits, workers=1, report=found.__setitem__)
                    except SandboxError as error:
                        found[program] = f"{type(error).__name__}: {error}"
        return [found[program] for program in unit]

    @cached_property
    def _held(self) -> LevelFinding:
        return self.how.held()

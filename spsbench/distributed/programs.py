"""A hand that judges programs, and the driver of many: `sps score` on other machines."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from spsbench.distributed.crew import workers_of
from spsbench.distributed.lacking import BrokenOffError
from spsbench.distributed.protocol import Hello, Work
from spsbench.distributed.same import check_same, place
from spsbench.distributed.scheduler import Group, Ledger, Scheduler
from spsbench.hardware.environment import usable_cores
from spsbench.sandbox.choice import LevelFinding, Name, choose
from spsbench.sandbox.levels import SandboxError
from spsbench.sandbox.verdict import Outcome, ProgramLimits
from spsbench.settings.execution import Crew
from spsbench.tasks.programs.generated import Program
from spsbench.tasks.programs.pool import judge

log = logging.getLogger(__name__)

Told = Callable[[Program, Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Sandboxed:
    """How programs are isolated."""

    sandbox: Name
    limits: ProgramLimits
    understood: bool
    image: str

    def held(self) -> LevelFinding:
        """The level, once its self-test has held here.

        Raises:
            SandboxError: none does.
        """
        return choose(self.sandbox, self.limits, understood=self.understood, image=self.image)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """A hand; its sandbox is tested on its own machine before any program is run there."""

    how: Sandboxed
    threads: int | None
    beside: int = 1

    def hello(self) -> Hello:
        """Say what verdicts are made with here.

        Raises:
            SandboxError: no sandbox holds here.
        """
        return Hello(place(), conditions(self._held), {})

    def work(self, units: Sequence[Program]) -> Work:
        """The outcome of each program."""
        level = self._held.level
        if level is None:
            raise SandboxError(f"no sandbox ({place()}): expected one. See `sps doctor` there")
        found: dict[Program, Outcome] = {}
        judge(
            units,
            level,
            self.how.limits,
            workers=self.threads or usable_cores(),
            told=found.__setitem__,
        )
        return Work([found[program] for program in units])

    @cached_property
    def _held(self) -> LevelFinding:
        return self.how.held()


def conditions(held: LevelFinding) -> dict[str, Any]:
    """What verdicts depend on, beside the programs: it must be the same everywhere."""
    flags: Mapping[str, Any] = held.level.flags if held.level else {}
    return {
        "sandbox": held.name,
        "interpreter": held.python,
        **{f"flags.{name}": value for name, value in flags.items()},
    }


def judge_on(
    crew: Crew,
    how: Sandboxed,
    held: LevelFinding,
    programs: Sequence[Program],
    *,
    told: Told,
    stop: Callable[[], bool],
) -> None:
    """Run each program on some worker and tell its outcome; a program that fails there is said.

    Args:
        held: what holds here: verdicts of other sandboxes are not put among its own.

    Raises:
        MismatchError: a worker's sandbox or interpreter is another.
        SpsError: no worker, or none that can isolate a program.
    """
    here, lost = conditions(held), []

    def give_up(program: Program, error: str) -> None:
        lost.append(program)
        log.info(f"no verdict on {'/'.join(map(str, program.key)).strip('/')}: {error}")

    ledger = Ledger(
        take=lambda worker, program, outcome: told(program, outcome),
        give_up=give_up,
        joined=lambda worker, hello: check_same(here, hello.environment, hello.place),
        lost=lambda worker, reason: log.info(f"note: {worker} is lost ({reason})"),
    )
    with workers_of(crew, partial(Judging, how=how), None, "cpu") as workers:
        Scheduler(workers, [Group(len(programs), iter(programs))], ledger).run(stop)
    if lost:
        raise BrokenOffError(
            f"{len(lost)} programs without a verdict: expected one of each. Go on with the same "
            "command"
        )

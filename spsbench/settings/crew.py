"""Who makes the records of a run: this process, others of this machine, or a cluster."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from spsbench.errors import UnavailableError, UsageError
from spsbench.settings.access import THREADS_MAX
from spsbench.settings.option import MACHINE, Option, between

HERE, PROCESSES, RAY = "here", "processes", "ray"
MOST = 10_000
NO_RAY = "no Ray (--on ray): expected it. pip install 'spsbench[ray]', or give --on processes:N"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Where the work is done. No part of what is generated."""

    on: Annotated[
        str,
        Option("here, processes:N, ray (of this machine) or ray:ADDRESS.", MACHINE),
    ] = HERE
    cpus_per_worker: Annotated[
        int | None,
        Option(
            "With --on: cores of each worker.",
            MACHINE,
            between(1, THREADS_MAX),
            shown="all of a machine; 1 beside a GPU",
        ),
    ] = None

    def __post_init__(self) -> None:
        _kind(self.on)
        if self.cpus_per_worker is not None and self.kind == HERE:
            raise UsageError(
                "--cpus-per-worker without --on: expected processes:N or ray with it. Leave it out"
            )
        if self.kind == RAY and find_spec("ray") is None:
            raise UnavailableError(NO_RAY)

    @property
    def kind(self) -> str:
        """Which of the three."""
        return _kind(self.on)

    @property
    def rest(self) -> str:
        """What stands after the colon: a number, or an address."""
        return self.on.partition(":")[2]


def _kind(on: str) -> str:
    kind, colon, rest = on.partition(":")
    plain = kind in (HERE, RAY) and not colon
    counted = kind == PROCESSES and rest.isdecimal() and 1 <= int(rest) <= MOST
    addressed = kind == RAY and bool(rest)
    if not (plain or counted or addressed):
        raise UsageError(
            f"--on {on}: expected here, processes:N, ray or ray:ADDRESS (such as ray:auto, or "
            "ray:10.0.0.1:6379)"
        )
    return kind

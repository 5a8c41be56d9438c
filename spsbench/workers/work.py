"""What a worker is given and gives: a function of units, and the process that runs it."""

import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from spsbench.errors import SpsError, UnavailableError, first_line, is_out_of_memory


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """The function of a worker, which its process receives pickled.

    Args:
        threads: of the processor; None = torch's choice.
        beside: workers on one machine.
    """

    threads: int | None = None
    beside: int = 1

    @abstractmethod
    def prepare(self) -> None:
        """Check this machine, before the first unit.

        Raises:
            SpsError: the work cannot be done here. The run ends with it.
        """

    @abstractmethod
    def __call__(self, unit: Any) -> Any:
        """Make a unit. Whatever it raises is a failure of the unit."""


class Refusal(NamedTuple):
    """The result of a worker that cannot work at all."""

    error: Exception


class Failure(NamedTuple):
    """The result of a unit that failed: kind and first line of its error, which may not pickle."""

    line: str


def failure(error: Exception) -> Failure:
    """Return the failure that an error is."""
    return Failure(f"{type(error).__name__}: {first_line(error)}")


class Runner:
    """Prepares a pickled `Work` in the process of a worker, and runs it."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._work: Work | None = None

    def run(self, unit: Any) -> Any:
        """Return the result of a unit, its failure, or the refusal of this worker."""
        if self._work is None:
            try:
                work: Work = pickle.loads(self._packed)
                work.prepare()
            except Exception as error:
                is_refusal = isinstance(error, SpsError) or is_out_of_memory(error)
                return Refusal(error if is_refusal else unfit(failure(error).line))
            self._work = work
        try:
            return self._work(unit)
        except Exception as error:
            return failure(error)


def unfit(reason: str) -> UnavailableError:
    """Return the error of a worker that cannot begin."""
    return UnavailableError(
        f"a worker cannot begin ({reason[:300]}): expected the driver's spsbench on every "
        "machine. Install the same there"
    )


def lost(reason: str) -> UnavailableError:
    """Return the error of a run whose worker has ended."""
    return UnavailableError(
        f"a worker has ended ({reason}): expected it to live. Results are kept up to here; look "
        "at the memory of its machine, and continue with `resume`"
    )

"""What a worker is given and gives: a function of units, and the process that runs it."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from spsbench.errors import SpsError, UnavailableError, first_line, is_out_of_memory

TICK = 1.0  # seconds between two looks at whether to stop


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """The function of a worker, which its process receives pickled.

    `threads` is the number for torch (None = its own choice), `beside` that of workers on one
    machine.
    """

    threads: int | None = None
    beside: int = 1

    @abstractmethod
    def prepare(self) -> None:
        """Check this machine, before the first unit; SpsError, with which a run ends: it cannot."""

    @abstractmethod
    def __call__(self, unit: Any) -> Any:
        """Make a unit. Whatever it raises is the result of the unit."""


class Runner:
    """Prepares a pickled `Work` in the process of a worker, and runs it."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._work: Work | None = None

    def run(self, unit: Any) -> bytes:
        """Return, pickled, (can this worker work, a unit's result or error); prepare work once."""
        if self._work is None:
            try:
                work: Work = pickle.loads(self._packed)
                work.prepare()
            except Exception as error:
                return pickle.dumps((False, portable(worker_refusal(error))))
            self._work = work
        try:
            return pickle.dumps((True, self._work(unit)))
        except Exception as error:  # such as a result that does not pickle
            return pickle.dumps((True, portable(error)))


def portable(error: Exception) -> Exception:
    """Return an error that the driver can unpickle: Python's and ours, or one that names it."""
    if type(error).__module__.partition(".")[0] in ("builtins", "spsbench"):
        with suppress(Exception):
            copy: Exception = pickle.loads(pickle.dumps(error))
            return copy
    return ChildProcessError(f"{type(error).__name__}: {first_line(error)}")


def worker_refusal(error: Exception) -> Exception:
    """Return an SpsError or one of memory as it is; any other becomes an UnavailableError."""
    if isinstance(error, SpsError) or is_out_of_memory(error):
        return error
    return UnavailableError(
        f"a worker cannot begin ({type(error).__name__}: {first_line(error)}): expected the "
        "driver's spsbench on every machine. Install the same there"
    )


def worker_lost(reason: str) -> UnavailableError:
    """Return the error of a run whose worker has ended."""
    return UnavailableError(
        f"a worker has ended ({reason}): expected it to live. Results are kept up to here; look "
        "at the memory of its machine, and continue with `resume`"
    )


class Pool(Protocol):
    """Workers, each of which makes a unit at a time."""

    count: int

    def begin(self, unit: Any) -> None:
        """Begin a unit; at most `count` are begun at once."""

    def finished(self) -> Iterator[tuple[Any, bytes]]:
        """Yield (unit, packed result of `Runner.run`) of those that have ended; may be none yet.

        UnavailableError: a worker has ended.
        """

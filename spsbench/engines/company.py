"""All ranks of a command, watched over: who goes, or stands still, is told to the others in a line.

What ranks do together breaks off when one of them is lost, in whatever words a library has for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist

from spsbench.engines.meeting import Meeting
from spsbench.errors import UnavailableError, first_line
from spsbench.hardware.ranks import LOST, ranks

GRACE = 10.0  # seconds that a process has for ending by itself when another rank is lost


class LostRankError(UnavailableError):
    """Another rank has ended, so that this one cannot go on."""


class Terms(NamedTuple):
    """How long ranks wait for each other to come, and who ends a process that cannot go on."""

    within: float = 30 * 86400.0  # seconds
    ends: Callable[[str], None] | None = None


_terms = Terms()


def agree(terms: Terms) -> None:
    """Before the ranks meet: what holds in this process."""
    global _terms
    _terms = terms


class Company:
    """The ranks of this process's command; each makes one, and waits for all the others.

    Raises:
        LostRankError: they do not come, or one of them went.
        UsageError: more ranks on this machine than accelerators.
    """

    def __init__(self) -> None:
        here = ranks()
        self._leads = here.rank == 0
        self._why = ""  # another rank is lost
        self._last: threading.Timer | None = None
        self._meeting: Meeting | None = None
        try:
            with lost(lambda: self._why):
                self._meeting = Meeting(here, _terms.within, self._lose)
        except TimeoutError as error:
            raise LostRankError(
                f"not all {here.size} ranks came in {_terms.within:.0f} s (this is rank "
                f"{here.rank}): expected them. Look at what the others say, and start again"
            ) from error
        except OSError as error:
            raise LostRankError(line(f"it cannot be reached: {first_line(error)}")) from error

    def check(self) -> None:
        """Raise LostRankError if it is known that another rank is lost."""
        if self._why:
            raise LostRankError(self._why)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do.

        Raises:
            LostRankError: another rank has ended or is silent, now or before.
        """
        self.check()
        with lost(lambda: self._why):
            yield
            self.check()  # a device may have gone on without sense

    def part(self, in_order: bool) -> None:
        """End.

        Args:
            in_order: the others end as well, and know it: rank 0 waits until each has taken its
                leave, or is lost; `check` tells then.
        """
        if self._meeting is not None and self._leads and in_order:
            self._meeting.heart.part()
        elif self._meeting is not None:
            self._meeting.heart.stop()
        if self._last is not None:
            self._last.cancel()

    def _lose(self, rank: int, silent: float | None) -> None:
        """Another rank is lost: wake who waits for it; from the heart's thread."""
        self._why = line("its connection closed") if silent is None else _silence(rank, silent)
        if self._meeting is not None:
            self._meeting.cut()
        if _terms.ends is not None:
            self._last = threading.Timer(GRACE, _terms.ends, [self._why])
            self._last.daemon = True
            self._last.start()


@contextmanager
def lost(why: Callable[[], str] = str) -> Iterator[None]:
    """Turn what the libraries say of a rank that has gone into one line.

    Args:
        why: what else is known of it by then.

    Raises:
        LostRankError: it has.
    """
    try:
        yield
    except LostRankError:
        raise
    except Exception as error:
        if not any(map(_is_of_ranks, _behind(error))):
            raise
        raise LostRankError(why() or line("its connection closed")) from error


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what it came of: a loader, say, tells what happened to it in its own words."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_ranks(error: BaseException) -> bool:
    """Whether a library says that another rank cannot be reached; gloo's errors have no kind."""
    known = isinstance(error, dist.DistError | ConnectionError)
    said = isinstance(error, RuntimeError) and any(w in str(error) for w in ("gloo", "NCCL"))
    return known or said


def line(what: str) -> str:
    """That a rank is lost, and how that shows."""
    return (
        f"{LOST} ({what}): expected all {ranks().size} of them to live. "
        "Look at what the other one says, and start again"
    )


def _silence(rank: int, seconds: float) -> str:
    return (
        f"rank {rank} has been silent for {seconds:g} s (--rank-timeout): expected a sign of life "
        "twice a second. Look whether it stands still or its machine is out of reach, and start "
        "again"
    )

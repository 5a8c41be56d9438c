"""What rank 0 tells the other ranks: a word and some whole numbers, then tensors where they belong.

Rank 0 alone runs the loop. Before a pass over a model that the ranks share it says which one; they
run it too, and the model's own all-reduces do the rest. So ranks cannot part by a rounding: nothing
is decided twice.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, auto
from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from spsbench.engines.meeting import Meeting
from spsbench.errors import UnavailableError, first_line
from spsbench.machine.ranks import LOST, ranks

INLINE = 64  # numbers of a message; longer ones take a second one
GRACE = 10.0  # seconds that a process has for ending by itself when another rank is lost


class Word(IntEnum):
    """What the other ranks are to do."""

    END = auto()
    LOAD = auto()  # a model: a pickled request follows
    OPEN = auto()  # a session: of which model, its own number
    FEED = auto()  # a session: tokens
    KEEP = auto()  # a session: how many rows of its cache, and which after them
    CLOSE = auto()
    PASS = auto()  # a model without a cache: tokens
    EMBED = auto()  # the embeddings of a model: ids follow
    HEAD = auto()  # its head: hidden states follow


class LostRankError(UnavailableError):
    """Another rank has ended, so that this one cannot go on."""


class Channel:
    """The same calls in the same order on all ranks; made once, by `channel()`."""

    def __init__(self) -> None:
        self._here = ranks()
        self.leads = self._here.rank == 0
        self.busy = False  # inside a pass that all ranks run
        self.broken = False
        self._why = ""  # another rank is lost
        self._last: threading.Timer | None = None
        self._closed: list[int] = []
        self._meeting: Meeting | None = None
        try:
            with lost(lambda: self._why):
                self._meeting = Meeting(self._here, _terms.within, self._lose)
        except TimeoutError as error:
            raise LostRankError(
                f"not all {self._here.size} ranks came in {_terms.within:.0f} s (this is rank "
                f"{self._here.rank}): expected them. Look at what the others say, and start again"
            ) from error
        except OSError as error:
            raise LostRankError(_line(f"it cannot be reached: {first_line(error)}")) from error

    def say(self, word: Word, numbers: Sequence[int] = ()) -> None:
        """Rank 0: to all others."""
        for session in self._take_closed():
            self._send(Word.CLOSE, [session])
        self._send(word, numbers)

    def closes(self, session: int) -> None:
        """A session that is gone; said before the next word, for nothing may be sent right now."""
        self._closed.append(session)

    def hear(self) -> tuple[Word, list[int]]:
        """The other ranks: what rank 0 says next."""
        head = torch.empty(INLINE, dtype=torch.int64)
        dist.broadcast(head, 0)
        word, count, *numbers = head.tolist()
        rest = count - (INLINE - 2)
        if rest > 0:
            more = torch.empty(rest, dtype=torch.int64)
            dist.broadcast(more, 0)
            numbers += more.tolist()
        return Word(word), numbers[:count]

    def _send(self, word: Word, numbers: Sequence[int]) -> None:
        head = torch.zeros(INLINE, dtype=torch.int64)
        said = torch.tensor([word, len(numbers), *numbers[: INLINE - 2]], dtype=torch.int64)
        head[: len(said)] = said
        dist.broadcast(head, 0)
        if len(numbers) > INLINE - 2:
            dist.broadcast(torch.tensor(numbers[INLINE - 2 :], dtype=torch.int64), 0)

    def _take_closed(self) -> list[int]:
        taken, self._closed = self._closed, []
        return taken

    @contextmanager
    def together(self) -> Iterator[None]:
        """A piece of work of all ranks; what breaks off inside leaves them out of step for good.

        Raises:
            LostRankError: another rank has ended or is silent, now or before.
        """
        if self.broken or self._why:
            raise LostRankError(self._why or _line("a shared pass broke off"))
        self.broken = self.busy = True
        try:
            with lost(lambda: self._why):
                yield
                if self._why:  # a device may have gone on without sense
                    raise LostRankError(self._why)
            self.broken = False
        finally:
            self.busy = False

    def shared(self, tensor: Tensor) -> Tensor:
        """`tensor` as rank 0 has it; the others give one of its shape and kind."""
        tensor = tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor

    def end(self) -> None:
        """In order, on each rank, when rank 0 has said that it is over, or cannot.

        Raises:
            LostRankError: rank 0, of one that does not take its leave.
        """
        if self._meeting is not None and self.leads and not self.broken:
            self._meeting.heart.part()
        elif self._meeting is not None:
            self._meeting.heart.stop()
        if self._last is not None:
            self._last.cancel()
        if self._why and self.leads:
            raise LostRankError(self._why)

    def _lose(self, rank: int, silent: float | None) -> None:
        """Another rank is lost: wake who waits for it; from the heart's thread."""
        self._why = _line("its connection closed") if silent is None else _silence(rank, silent)
        if self._meeting is not None:
            self._meeting.cut()
        if _terms.ends is not None:
            self._last = threading.Timer(GRACE, _terms.ends, [self._why])
            self._last.daemon = True
            self._last.start()


class Terms(NamedTuple):
    """How long ranks wait for each other to come, and who ends a process that cannot go on."""

    within: float = 30 * 86400.0  # seconds
    ends: Callable[[str], None] | None = None


_terms = Terms()


def agree(terms: Terms) -> None:
    """Before the first `channel()`: what holds in this process."""
    global _terms
    _terms = terms


@cache
def channel() -> Channel:
    """The channel of this process; the first call waits for all ranks."""
    return Channel()


def end() -> None:
    """Rank 0: let the others go. It joins them for that where it had no work for them."""
    made = channel()
    if not made.broken:
        with made.together():
            made.say(Word.END)
    made.end()
    dist.destroy_process_group()


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
        raise LostRankError(why() or _line("its connection closed")) from error


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


def _line(what: str) -> str:
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

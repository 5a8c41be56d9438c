"""What rank 0 tells the other ranks: a word and some whole numbers, then tensors where they belong.

Rank 0 alone runs the loop. Before a pass over a model that the ranks share it says which one; they
run it too, and the model's own all-reduces do the rest. So ranks cannot part by a rounding: nothing
is decided twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum, auto
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from spsbench.errors import UnavailableError
from spsbench.machine.ranks import LOST, ranks

INLINE = 64  # numbers of a message; longer ones take a second one
PATIENCE = timedelta(days=30)  # a conversation may pause; a rank that has gone is noticed at once


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
        here = ranks()
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(here.local)
        with lost():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
        self.leads = here.rank == 0
        self.busy = False  # inside a pass that all ranks run
        self.broken = False
        self._closed: list[int] = []

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
            LostRankError: another rank has ended, now or before.
        """
        if self.broken:
            raise LostRankError(_line("a shared pass broke off"))
        self.broken = self.busy = True
        try:
            with lost():
                yield
            self.broken = False
        finally:
            self.busy = False

    def shared(self, tensor: Tensor) -> Tensor:
        """`tensor` as rank 0 has it; the others give one of its shape and kind."""
        tensor = tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor


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
    dist.destroy_process_group()


@contextmanager
def lost() -> Iterator[None]:
    """Turn what the libraries say of a rank that has gone into one line.

    Raises:
        LostRankError: it has.
    """
    try:
        yield
    except RuntimeError as error:  # gloo's errors have no kind of their own
        told = str(error)
        gone = isinstance(error, dist.DistError) or any(w in told for w in ("gloo", "NCCL"))
        if not gone:
            raise
        raise LostRankError(_line("its connection closed")) from error


def _line(what: str) -> str:
    return (
        f"{LOST} ({what}): expected all {ranks().size} of them to live. "
        "Look at what the other one says, and start again"
    )

"""What rank 0 tells the other ranks: a word and some whole numbers, then tensors where they belong.

Rank 0 alone runs the loop. Before a pass over a model that the ranks share it says which one; they
run it too, and the model's own all-reduces do the rest. So ranks cannot part by a rounding: nothing
is decided twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, auto
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from spsbench.engines.company import Company, LostRankError, line
from spsbench.hardware.ranks import ranks

INLINE = 64  # numbers of a message; longer ones take a second one


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


class Channel:
    """The same calls in the same order on all ranks; made once, by `channel()`."""

    def __init__(self) -> None:
        self.leads = ranks().rank == 0
        self.busy = False  # inside a pass that all ranks run
        self.broken = False
        self._closed: list[int] = []
        self._company = Company()

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
        self._company.check()
        if self.broken:
            raise LostRankError(line("a shared pass broke off"))
        self.broken = self.busy = True
        try:
            with self._company.together():
                yield
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
        self._company.part(in_order=not self.broken)
        if self.leads:
            self._company.check()


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

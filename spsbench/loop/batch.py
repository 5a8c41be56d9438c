"""Batches: unchanged loops of one text each, whose passes are made together.

Each row of a batch is a greenlet, which runs until it asks for a pass of a model. When every row
waits, the passes of one model are made in one call, and each row goes on with its own scores. No
drafter, verifier or schedule knows of other rows, and the noise of a row is its own: a text does
not depend on its neighbours.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from spsbench.loop.drafter_context import CommonPass, Made
from spsbench.loop.types import LM, Scores

DRAFT, TARGET = 0, 1
"""The order of common passes: all rows draft, the target verifies the drafts."""


class Fed(NamedTuple):
    """The arguments of a pass, as `LM.append` takes them."""

    lm: Any
    tokens: Tensor
    keep: int
    parents: Tensor | None


class FinishedRow(NamedTuple, Generic[Made]):
    """A finished row of a batch."""

    number: int  # in the order of the calls, from 0
    result: Made
    seconds: float  # from its start to its end
    share: float  # seconds of the machine: each moment is divided among the rows that are running


class _AwaitedPass(NamedTuple):
    """A pass that a row waits for."""

    order: int
    kind: Hashable
    inputs: Any
    together: CommonPass


class Batch:
    """Rows that run in turn, each until it asks for a pass.

    `size` rows run at a time. If `continuous`, a row that ends makes room for the next call at
    once; else its place stays empty until all rows have ended. `passes` counts common passes by
    their order.
    """

    def __init__(self, size: int, *, continuous: bool = False) -> None:
        if size < 1:
            raise ValueError(f"size is {size}: expected 1 row or more")
        self.size, self.continuous = size, continuous
        self.passes: dict[int, int] = {}
        self._waiting: dict[greenlet, _AwaitedPass] = {}
        self._hub: greenlet | None = None
        self._modes = modes_now()

    def run(self, calls: Iterable[Callable[[], Made]]) -> Iterator[FinishedRow[Made]]:
        """Run calls as rows, `size` at a time, and yield each as it ends.

        The next begin when all rows have ended, or, if `continuous`, when one has. If one raises,
        all others are ended and the error is raised; closing the generator ends all.
        """
        left, clock = enumerate(calls), SharedClock()
        rows: dict[greenlet, tuple[int, float, float]] = {}  # number, and the clock at its begin
        more = True
        try:
            while more or rows:
                filling = self.continuous or not rows
                while filling and more and len(rows) < self.size:
                    number, call = next(left, (0, None))
                    if call is None:
                        more = False
                        break
                    begun = greenlet(call)
                    rows[begun] = (number, *clock.at(len(rows)))
                    yield from self._ended(rows, clock, begun, None)
                for row, scores in self._pass():
                    yield from self._ended(rows, clock, row, scores)
        finally:
            self._waiting.clear()
            for row in rows:
                if not row.dead:
                    row.parent = getcurrent()
                    row.throw()  # its `with` blocks are left

    def ask(self, order: int, kind: Hashable, inputs: Any, together: CommonPass) -> Any:
        """Wait, in a row, for a common pass, and return its part of the result, or raise the error.

        Outside of rows the pass is made at once, for this caller alone. Passes of one `kind` are
        made together, the least `order` first, by `together`, from a list of the `inputs` of the
        rows that wait for it.
        """
        if self._hub is None or getcurrent().parent is not self._hub:
            return together([inputs])[0]
        with modes(*self._modes):
            return self._hub.switch(_AwaitedPass(order, kind, inputs, together))

    def _ended(
        self, rows: dict[greenlet, Any], clock: "SharedClock", row: greenlet, reply: Any
    ) -> Iterator[FinishedRow[Any]]:
        """Resume `row` with `reply`; yield it if it ended, else note what it waits for."""
        outcome = self._go_on(row, reply)
        if row.dead:
            now, shared = clock.at(len(rows))
            number, began, share = rows.pop(row)
            yield FinishedRow(number, outcome, now - began, shared - share)
        else:
            self._waiting[row] = outcome

    def _go_on(self, row: greenlet, reply: Any) -> Any:
        """Run `row` on with `reply`, raised if an error; return what it asks for, or its result."""
        before, self._hub = self._hub, getcurrent()
        row.parent = self._hub
        try:
            with modes(*self._modes):
                if isinstance(reply, Exception):
                    return row.throw(reply)
                return row.switch(reply) if row else row.switch()  # false before it has begun
        finally:
            self._hub = before

    def _pass(self) -> Iterator[tuple[greenlet, Any]]:
        """Make the pass of the kind with the least order, count it, and yield its rows.

        Each row, which waits no longer, comes with its part of the result, or with the error.
        """
        if not self._waiting:
            return
        first = min(self._waiting.values(), key=lambda request: request.order)
        rows = [row for row, request in self._waiting.items() if request[:2] == first[:2]]
        inputs = [self._waiting.pop(row).inputs for row in rows]
        self.passes[first.order] = self.passes.get(first.order, 0) + 1
        outputs: Sequence[Any]
        try:
            outputs = first.together(inputs)
        except Exception as error:  # the model's: each row fails as it would alone
            outputs = [error] * len(rows)
        yield from zip(rows, outputs, strict=True)


class SharedClock:
    """The time, and the seconds of the machine that a row which runs all the time has had."""

    def __init__(self) -> None:
        self._now, self._shared = time.perf_counter(), 0.0

    def at(self, running: int) -> tuple[float, float]:
        """Return both; since the last call `running` rows had the machine in equal shares."""
        now = time.perf_counter()
        self._shared += (now - self._now) / max(1, running)
        self._now = now
        return now, self._shared


class BatchedLM:
    """A session in a row of a batch: passes that others can share wait for them."""

    def __init__(self, lm: LM, batch: Batch, order: int) -> None:
        self._lm, self._batch, self._order = lm, batch, order
        self._shares = getattr(lm, "shares", lambda fed: None)
        self.vocab_size, self.limit = lm.vocab_size, lm.limit

    @property
    def length(self) -> int:
        return self._lm.length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed tokens, in a common pass where the session shares it; return this row's scores."""
        fed = Fed(self._lm, tokens, keep, parents)
        if (kind := self._shares(fed)) is None:
            return self._lm.append(tokens, keep, parents)
        scores: Scores = self._batch.ask(self._order, kind, fed, _together)
        return scores

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        self._lm.commit(length, path)


def _together(passes: Sequence[Fed]) -> list[Scores]:
    if len(passes) == 1:
        return [passes[0].lm.append(*passes[0][1:])]
    scores: list[Scores] = passes[0].lm.together(passes)
    return scores


def modes_now() -> tuple[bool, bool]:
    """Return the modes of torch that would leak from one greenlet into another."""
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@contextmanager
def modes(inference: bool, grad: bool) -> Iterator[None]:
    """Set torch's inference and gradient modes within the block, and restore them after it."""
    if modes_now() == (inference, grad):
        yield
        return
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        yield

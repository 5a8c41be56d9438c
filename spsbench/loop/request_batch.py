"""Batches of requests: rows whose texts another engine makes, so many at a time.

A row waits for its answer as other rows wait for a pass. All requests of a batch run in one event
loop on a thread of its own: neither the next prompt nor a record that is written delays the moment
at which a piece of an answer is seen.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import Context, ContextVar
from threading import Thread
from typing import Any, TypeVar

from greenlet import greenlet

from spsbench.loop.batch import Batch, FinishedRow, SharedClock
from spsbench.loop.drafter_context import Made

Value = TypeVar("Value")
_row: ContextVar[greenlet | None] = ContextVar("row", default=None)
"""The row whose request runs."""
Request = Callable[[], Coroutine[Any, Any, Value]]


class RequestBatch(Batch):
    """Rows that wait for answers of another engine.

    The seconds of a row are those in which one of its requests was in flight; its share divides
    each moment among the requests that were in flight then. Neither holds a pause between attempts.
    `at_end` makes `summary`, what the engine tells of all rows and of none alone (None: nothing),
    when all rows have ended without an error.
    """

    def __init__(self, size: int, *, continuous: bool = False) -> None:
        super().__init__(size, continuous=continuous)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock, self._in_flight = SharedClock(), 0
        self._sent: dict[Future[Any], greenlet] = {}
        self._spent: dict[greenlet, tuple[float, float]] = {}  # seconds and share in flight
        self._values: dict[Hashable, asyncio.Future[Any]] = {}
        self._open = AsyncExitStack()
        self.at_end: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self.summary: Any = None

    def run(self, calls: Iterable[Callable[[], Made]]) -> Iterator[FinishedRow[Made]]:
        """Run calls as rows over one event loop, and yield each as it ends; then set `summary`.

        One that raises ends all, without a summary. At the end requests are cancelled, entered
        contexts left and the values of `once` forgotten.
        """
        with _loop_on_a_thread() as self._loop:
            try:
                yield from super().run(calls)
                if self.at_end is not None:
                    request = asyncio.run_coroutine_threadsafe(self.at_end(), self._loop)
                    self.summary = request.result()
            finally:
                asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
                self._sent.clear()
                self._values.clear()

    def answer(self, request: Request[Value]) -> Value:
        """Wait, in a row, for the answer to a request; outside of rows it is made alone."""
        value: Value = self.ask(0, "answer", request, _one_by_one)
        return value

    async def once(self, key: Hashable, make: Request[Value]) -> Value:
        """Return the value or error of `make()`, called once in a run for a `key`; others wait."""
        if key not in self._values:
            task = asyncio.get_running_loop().create_task(make(), context=Context())  # no row's
            self._values[key] = task
        value: Value = await asyncio.shield(self._values[key])
        return value

    async def enter(self, context: AbstractAsyncContextManager[Value]) -> Value:
        """Enter a context that is left when all rows have ended."""
        return await self._open.enter_async_context(context)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count the block's time for the row whose request runs; outside of one count nothing."""
        if (row := _row.get()) is None:
            yield
            return
        began, share = self._clock.at(self._in_flight)
        self._in_flight += 1
        try:
            yield
        finally:
            now, shared = self._clock.at(self._in_flight)
            self._in_flight -= 1
            seconds, part = self._spent.get(row, (0.0, 0.0))
            self._spent[row] = seconds + now - began, part + shared - share

    def _pass(self) -> Iterator[tuple[greenlet, Any]]:
        """Send requests of waiting rows, wait for an answer; yield rows with answers or errors."""
        if not self._waiting or self._loop is None:
            return
        sent = set(self._sent.values())
        for row, request in self._waiting.items():
            if row not in sent:
                answer = _take_answer(row, request.inputs)
                self._sent[asyncio.run_coroutine_threadsafe(answer, self._loop)] = row
        done, _ = wait(self._sent, return_when=FIRST_COMPLETED)
        for future in [future for future in self._sent if future in done]:
            row = self._sent.pop(future)
            del self._waiting[row]
            yield row, future.exception() or future.result()

    async def _close(self) -> None:
        """Cancel the requests that run, then leave what was entered."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._open.aclose()

    def _ended(
        self, rows: Any, clock: Any, row: greenlet, reply: Any
    ) -> Iterator[FinishedRow[Any]]:
        for ended in super()._ended(rows, clock, row, reply):
            seconds, share = self._spent.pop(row, (0.0, 0.0))
            yield ended._replace(seconds=seconds, share=share)


async def _take_answer(row: greenlet, request: Request[Value]) -> Value:
    _row.set(row)
    return await request()


def _one_by_one(requests: Iterable[Request[Value]]) -> list[Value]:
    return [asyncio.run(request()) for request in requests]


@contextmanager
def _loop_on_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs on a thread; the end of the block closes it and the thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="requests", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        for end in loop.shutdown_asyncgens(), loop.shutdown_default_executor():
            asyncio.run_coroutine_threadsafe(end, loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

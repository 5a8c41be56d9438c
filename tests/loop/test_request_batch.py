"""Rows that wait for another engine: their time, what they share, and how they end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.loop.request_batch import RequestBatch


def test_each_moment_is_divided_among_the_requests_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("spsbench.loop.batch.time", SimpleNamespace(perf_counter=lambda: now[0]))
    batch = RequestBatch(2)

    async def request(name: str) -> str:
        events = await batch.once("events", make_events)
        start, end = events[name]
        await start.wait()
        with batch.in_flight():
            events["steps"].put_nowait(name)
            await end.wait()
        events["steps"].put_nowait(name)
        return name

    async def make_events() -> dict[str, Any]:
        events: dict[str, Any] = {n: (asyncio.Event(), asyncio.Event()) for n in ("a", "b")}
        events["steps"] = asyncio.Queue()
        batch.conduct = asyncio.ensure_future(conduct(events))  # type: ignore[attr-defined]
        return events

    async def conduct(events: dict[str, Any]) -> None:
        for at, name, side in ((1, "a", 0), (2, "b", 0), (4, "a", 1), (7, "b", 1)):
            now[0] = at
            events[name][side].set()
            await events["steps"].get()

    rows = {
        row.result: row
        for row in batch.run(lambda n=name: batch.answer(lambda: request(n)) for name in ("a", "b"))
    }
    assert rows["a"][2:] == (3.0, 1 + 2 / 2)
    assert rows["b"][2:] == (5.0, 2 / 2 + 3)


def test_a_row_that_raises_cancels_the_requests_of_the_others() -> None:
    batch, cancelled, left = RequestBatch(2), list[str](), list[str]()

    class Resource:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *exception: object) -> None:
            left.append("resource")

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("never")
            raise

    async def fails() -> None:
        await batch.enter(Resource())
        raise ValueError("no")

    calls = [lambda: batch.answer(never), lambda: batch.answer(fails)]
    with pytest.raises(ValueError):
        list(batch.run(calls))
    assert cancelled == ["never"]
    assert left == ["resource"]


def test_what_rows_share_is_made_once_and_its_failure_is_that_of_each() -> None:
    batch, made = RequestBatch(3), list[int]()

    async def make() -> int:
        made.append(1)
        await asyncio.sleep(0)
        if len(made) > 1:
            raise ValueError("again")
        return 7

    async def request() -> int:
        return await batch.once("value", make)

    def tried() -> int | str:
        try:
            return batch.answer(request)
        except ValueError as error:
            return str(error)

    assert [row.result for row in batch.run([tried] * 3)] == [7] * 3
    assert [row.result for row in batch.run([tried] * 2)] == ["again"] * 2
    assert len(made) == 2


def test_an_answer_of_none_reaches_its_row() -> None:
    batch = RequestBatch(1)
    (row,) = batch.run([lambda: batch.answer(lambda: asyncio.sleep(0))])
    assert row.result is None

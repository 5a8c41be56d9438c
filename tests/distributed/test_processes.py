"""Workers that are processes: real ones, without models, killed for real."""

import os
import signal
from functools import partial

import pytest

from spsbench.distributed.processes import Processes
from spsbench.distributed.protocol import Piece
from spsbench.distributed.scheduler import Group, Scheduler
from spsbench.errors import DataError
from tests.distributed.made import Doubling
from tests.distributed.test_scheduler import Book, whole


def carried_out(hand, count, workers=2, told=lambda pool: None):
    pool, book = Processes(partial(Doubling, **hand), workers), Book()
    ledger = book.ledger._replace(told=lambda: told(pool))
    try:
        Scheduler(pool, [Group(count, iter(range(count)))], ledger).run()
    finally:
        pool.close()
    return book


def test_killed_from_within_and_from_without():
    killed: list[int] = []

    def kill(pool: Processes) -> None:
        if len(killed) < 2:
            pid = next(iter(pool.pids().values()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    book = carried_out({"failing": (3,), "seconds": 0.002}, 40, told=kill)
    whole(book, but=(3,), count=40)
    assert book.given_up == {3: "ValueError: unit 3"}
    assert len(killed) == 2


def test_what_a_worker_refuses_is_said_as_it_is():
    with pytest.raises(DataError, match="no model"):
        carried_out({"refuses": True}, 4, workers=1)


def test_they_end_with_their_pipe():
    """As when the driver is killed: nothing is left running, whatever it was at."""
    pool = Processes(partial(Doubling, seconds=60), 1)
    (joined,) = pool.wait(20)
    pool.give(joined.worker, Piece(1, 0, (1,)))
    process, pipe = next(iter(pool._there.values()))
    pipe.close()
    assert joined.hello.place == "here"
    assert process.wait(10) == 0

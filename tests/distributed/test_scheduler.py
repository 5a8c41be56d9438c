"""The scheduler, in simulated time: every unit once, whatever becomes of those who make it."""

from collections import Counter
from itertools import pairwise

import pytest

from spsbench.distributed.protocol import Hello, Joined, Lost, Piece, Refused
from spsbench.distributed.scheduler import LOSSES, TRIES, Group, Ledger, Scheduler
from spsbench.distributed.sizes import MOST, Sizes
from spsbench.errors import DataError, MismatchError, UnavailableError
from tests.distributed.made import Simulated

COUNT = 200


class Book:
    """What a driver would write."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.given_up: dict[int, str] = {}
        self.sizes: list[int] = []

    def take(self, worker: str, unit: int, result: int) -> None:
        self.taken.append((unit, result))

    def give_up(self, unit: int, error: str) -> None:
        assert unit not in self.given_up
        self.given_up[unit] = error

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.take, self.give_up)


def carried_out(workers, *counts, stop=lambda: False):
    """A run over groups of `counts` units; the units of all are numbered through."""
    counts = counts or (COUNT,)
    groups, begin = [], 0
    for count in counts:
        groups.append(Group(count, iter(range(begin, begin + count))))
        begin += count
    book = Book()
    scheduler = Scheduler(workers, groups, book.ledger, clock=workers.clock)
    scheduler.run(stop)
    return book, scheduler


def whole(book, but=(), count=COUNT):
    assert sorted(book.taken) == [(n, 2 * n) for n in range(count) if n not in but]


def test_every_unit_once():
    workers = Simulated(7)
    book, _ = carried_out(workers)
    whole(book)
    assert Counter(workers.made) == Counter(range(COUNT))


@pytest.mark.parametrize("seed", range(20))
def test_workers_lost_at_random_cost_what_was_in_flight(seed):
    workers = Simulated(5, seed=seed, lost=0.1)
    book, scheduler = carried_out(workers)
    whole(book)
    assert scheduler.losses == len(workers.gone) > 0


@pytest.mark.parametrize("seed", range(10))
def test_what_is_told_twice_or_too_late_counts_once(seed):
    workers = Simulated(5, seed=seed, lost=0.1, doubled=True)
    book, _ = carried_out(workers)
    whole(book)


def test_a_unit_that_fails_is_given_up_and_the_others_finish():
    workers = Simulated(4, failing=(11, 150))
    book, _ = carried_out(workers)
    whole(book, but=(11, 150))
    assert book.given_up == dict.fromkeys((11, 150), "ValueError: unit")
    assert Counter(workers.made)[150] == TRIES


def test_a_unit_that_kills_is_given_up_and_its_neighbours_are_not():
    workers = Simulated(4, deadly=(150,))
    book, scheduler = carried_out(workers)
    whole(book, but=(150,))
    assert list(book.given_up) == [150]
    assert scheduler.losses == LOSSES == Counter(workers.made)[150]


def test_pieces_grow_to_their_time_and_shrink_to_the_end():
    sizes = Sizes(seconds=20)
    assert sizes.of(0, 10**6, 4) == 1  # nothing is known yet
    sizes.saw(0, 1, 0.5)
    assert sizes.of(0, 10**6, 4) == 40
    assert sizes.of(0, 16, 4) == 2
    assert sizes.of(0, 1, 4) == 1
    sizes.saw(1, 10, 1e-9)
    assert sizes.of(1, 10**6, 4) == MOST


def test_a_worker_keeps_to_the_models_it_has():
    class Seen(Simulated):
        groups: dict[str, list[int]]

        def give(self, worker: str, piece: Piece) -> None:
            self.groups.setdefault(worker, []).append(piece.group)
            super().give(worker, piece)

    workers = Seen(2)
    workers.groups = {}
    book, _ = carried_out(workers, 60, 60)
    whole(book, count=120)
    for groups in workers.groups.values():
        changes = sum(a != b for a, b in pairwise(groups))
        assert changes <= 2, groups


def test_nobody_is_waited_for_long():
    """A worker that stands still: its piece is made by an idle one, and its own comes too late."""
    workers = Simulated(4, slow={"w2": 1e9})
    book, scheduler = carried_out(workers)
    whole(book)
    assert scheduler.backups >= 1
    assert workers.now < 1e4


def test_a_stop_ends_it():
    workers = Simulated(4)
    book, _ = carried_out(workers, stop=lambda: workers.now > 5)
    assert 0 < len(book.taken) < COUNT


def test_no_worker_left_is_one_line():
    workers = Simulated(2)

    def wait(seconds):
        workers.coming = 0
        return []

    workers.wait = wait
    with pytest.raises(UnavailableError, match="no worker is left"):
        carried_out(workers)


def test_workers_that_never_begin_end_the_run():
    workers = Simulated(2)
    workers.wait = lambda seconds: [Lost("w9", "exit code 1")]
    with pytest.raises(UnavailableError, match="end before they begin"):
        carried_out(workers)


def test_a_refusal_is_passed_on():
    workers = Simulated(2)
    workers.wait = lambda seconds: [Refused("w1", DataError("no model"))]
    with pytest.raises(DataError, match="no model"):
        carried_out(workers)


def test_a_worker_of_another_kind_is_refused_by_the_ledger():
    def joined(worker: str, hello: Hello) -> None:
        raise MismatchError(worker)

    workers = Simulated(2)
    workers.wait = lambda seconds: [Joined("w1", Hello("", {}, {}))]
    book = Book()
    scheduler = Scheduler(
        workers, [Group(1, iter([0]))], book.ledger._replace(joined=joined), clock=workers.clock
    )
    with pytest.raises(MismatchError, match="w1"):
        scheduler.run()


def test_fewer_units_than_were_said():
    book = Book()
    workers = Simulated(3)
    Scheduler(workers, [Group(50, iter(range(20)))], book.ledger, clock=workers.clock).run()
    whole(book, count=20)


class Forgetful(Scheduler):
    """Planted: what a lost worker was at is not made again."""

    def _drop(self, worker, number, error, **how):
        self._flights.pop(number, None)


class Credulous(Scheduler):
    """Planted: whatever is told counts."""

    def _land(self, worker, number, work):
        flight = self._flights.get(number)
        super()._land(worker, number, work)
        if flight is not None:
            self._told = {**getattr(self, "_told", {}), number: flight}
        elif number in getattr(self, "_told", {}):
            self._flights[number] = self._told[number]
            super()._land(worker, number, work)


@pytest.mark.parametrize("planted", [Forgetful, Credulous])
def test_planted_faults_are_seen(planted, monkeypatch):
    monkeypatch.setitem(globals(), "Scheduler", planted)
    book, _ = carried_out(Simulated(5, lost=0.1, doubled=True))
    with pytest.raises(AssertionError):
        whole(book)

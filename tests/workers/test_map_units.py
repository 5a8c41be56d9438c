"""The driver of units: every unit once, whatever becomes of those who make it."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spsbench.errors import DataError, UnavailableError
from spsbench.settings.execution import Workers
from spsbench.workers import map_units as module
from spsbench.workers.map_units import TRIES, is_stopped, map_units
from spsbench.workers.work import LOSSES
from tests.waiting import wait_until
from tests.workers.doubling import Doubling, Written
from tests.workers.inline import first, inline

COUNT = 200
TWO = Workers(on="processes:2")


def carry_out(count=COUNT, written=None, stop=lambda: False, watch=lambda *_: None, **work):
    written = written or Written()
    map_units(
        TWO,
        Doubling(**work),
        iter(range(count)),
        take=written.take,
        give_up=written.give_up,
        stop=stop,
        watch=watch,
    )
    return written


def test_every_unit_is_made_once(monkeypatch):
    pools = inline(monkeypatch)
    carry_out().check(COUNT)
    assert Counter(pools[0].given) == Counter(range(COUNT))


@pytest.mark.parametrize("seed", range(5))
def test_workers_lost_at_random_cost_what_was_in_flight(monkeypatch, seed):
    draw = random.Random(seed)
    pools = inline(monkeypatch, dies=lambda unit: draw.random() < 0.1)
    carry_out().check(COUNT)
    assert pools[0].lost > 0
    assert len(pools[0].given) == COUNT + pools[0].lost


def test_a_unit_that_fails_is_given_up_and_the_others_finish(monkeypatch):
    pools = inline(monkeypatch)
    written = carry_out(failing=(11, 150))
    written.check(COUNT, but=(11, 150))
    assert written.given_up == {n: f"ValueError: unit {n}" for n in (11, 150)}
    assert Counter(pools[0].given)[150] == TRIES


def test_a_unit_that_kills_is_given_up_and_its_neighbours_are_not(monkeypatch):
    pools = inline(monkeypatch, dies=lambda unit: unit == 150)
    written = carry_out()
    written.check(COUNT, but=(150,))
    assert pools[0].lost == LOSSES == Counter(pools[0].given)[150]


def test_a_stop_ends_it(monkeypatch):
    inline(monkeypatch)
    written = Written()
    carry_out(written=written, stop=lambda: len(written.taken) > 5)
    assert 5 < len(written.taken) < COUNT


def test_workers_that_never_begin_end_the_run(monkeypatch):
    inline(monkeypatch, dies=first(100))
    with pytest.raises(UnavailableError):
        carry_out()


@pytest.mark.parametrize(
    ("refuses", "raised"),
    [(DataError, DataError), (MemoryError, MemoryError), (ImportError, UnavailableError)],
)
def test_what_a_worker_refuses_ends_the_run(monkeypatch, refuses, raised):
    inline(monkeypatch)
    with pytest.raises(raised):
        carry_out(refuses=refuses)


def test_a_lost_unit_that_is_not_made_again_would_be_seen(monkeypatch):
    """Planted: a unit whose worker is lost is forgotten."""
    monkeypatch.setattr(module.Attempt, "_replace", lambda self, **_: self._make((-1, 0, 0)))
    inline(monkeypatch, dies=lambda unit: unit == 7)
    with pytest.raises(AssertionError):
        carry_out().check(COUNT)


def children(pid):
    """The workers of a process: those that spawn started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            if b"--multiprocessing-fork" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_processes_that_are_killed_and_stopped_lose_no_unit(monkeypatch):
    monkeypatch.setattr(module, "STOPPED", 0.2)
    monkeypatch.setattr(module, "TICK", 0.1)
    hit = []

    def strike(workers, losses):
        """Kill one, then stop all."""
        if len(written.taken) >= 5 and not hit:
            hit.append(os.kill(children(os.getpid())[0], signal.SIGKILL))
        if len(written.taken) >= 15 and len(hit) == 1:
            hit.append([os.kill(pid, signal.SIGSTOP) for pid in children(os.getpid())])

    written = Written()
    carry_out(40, written, watch=strike, failing=(3,), deadly=(30,), seconds=0.002)
    written.check(40, but=(3, 30))
    assert written.given_up == {3: "ValueError: unit 3", 30: "worker lost: SIGKILL"}
    assert len(hit) == 2
    assert not children(os.getpid())


def has_begun(pid):
    """Whether a worker has tied itself to its driver: then it writes its output nowhere."""
    return os.readlink(f"/proc/{pid}/fd/1") == os.devnull


DRIVER = """
from spsbench.workers.map_units import map_units
from spsbench.settings.execution import Workers
from tests.workers.doubling import Doubling

map_units(
    Workers(on="processes:2"),
    Doubling(seconds=60),
    range(4),
    take=lambda *_: None,
    give_up=lambda *_: None,
)
"""  # a script without a guard


def test_stopped_processes_end_with_a_killed_driver():
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=os.environ | {"PYTHONPATH": "."}, stdout=subprocess.PIPE
    )
    assert wait_until(lambda: len(list(filter(has_begun, children(driver.pid)))) >= 2)
    workers = list(filter(has_begun, children(driver.pid)))
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    driver.kill()
    driver.communicate()
    assert wait_until(lambda: not any(map(is_stopped, workers)))

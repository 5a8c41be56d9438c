"""The driver of units: every unit once, or a run that ends in one line and can be resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.errors import DataError, UnavailableError
from spsbench.settings.execution import Workers
from spsbench.workers.map_units import map_units
from tests.waiting import wait_until
from tests.workers.doubling import Doubling, Written
from tests.workers.inline import inline

COUNT = 200


def carry_out(count=COUNT, written=None, stop=lambda: False, **work):
    written = written or Written()
    map_units(
        Workers(on="processes:2"),
        Doubling(**work),
        iter(range(count)),
        take=written.take,
        give_up=written.give_up,
        stop=stop,
    )
    return written


def test_each_unit_is_made_once_and_one_that_fails_is_given_up(monkeypatch):
    pools = inline(monkeypatch)
    written = carry_out(failing=(11, 150))
    written.check(COUNT, but=(11, 150))
    assert written.given_up == {n: f"ValueError: unit {n}" for n in (11, 150)}
    assert sorted(pools[0].submitted) == list(range(COUNT))


def test_a_lost_worker_ends_the_run_with_what_was_taken_before(monkeypatch):
    inline(monkeypatch, dies=lambda unit: unit == 150)
    written = Written()
    with pytest.raises(UnavailableError):
        carry_out(written=written)
    taken = dict(written.taken)
    assert len(taken) == len(written.taken) > 0
    assert 150 not in taken
    assert all(made == 2 * unit for unit, made in taken.items())


def test_a_stop_ends_it(monkeypatch):
    inline(monkeypatch)
    written = Written()
    carry_out(written=written, stop=lambda: len(written.taken) > 5)
    assert 5 < len(written.taken) < COUNT


@pytest.mark.parametrize(
    ("refuses", "raised"),
    [(DataError, DataError), (MemoryError, MemoryError), (ImportError, UnavailableError)],
)
def test_what_a_worker_refuses_ends_the_run(monkeypatch, refuses, raised):
    inline(monkeypatch)
    with pytest.raises(raised):
        carry_out(refuses=refuses)


def children(pid):
    """Return the workers of a process: those that spawn started."""
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            if b"--multiprocessing-fork" in Path(f"/proc/{child}/cmdline").read_bytes():
                pids.append(child)
    return pids


def test_processes_make_each_unit_once():
    written = carry_out(40, failing=(3,))
    written.check(40, but=(3,))
    assert not children(os.getpid())


def test_a_process_that_is_killed_ends_the_run_in_a_line_with_its_signal():
    written = Written()
    with pytest.raises(UnavailableError) as caught:
        carry_out(40, written, deadly=(30,))
    assert "SIGKILL" in str(caught.value)
    assert {unit for unit, _ in written.taken} >= set(range(29))
    assert not children(os.getpid())


def has_begun(pid):
    """Return whether a worker has tied itself to its driver: it then writes its output nowhere."""
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


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
    assert wait_until(lambda: not any(map(is_alive, workers)))

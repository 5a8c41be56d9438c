"""The driver of units: every unit once, or a run that ends in one line and can be resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.errors import DataError, UnavailableError, UsageError
from spsbench.settings.execution import Workers
from spsbench.workers.map_units import map_units
from tests.waiting import wait_until
from tests.workers.doubling import Doubling, Written


def carry_out(count=40, written=None, stop=lambda: False, **work):
    written = written or Written()
    units = iter(range(count))
    map_units(Workers(on="processes:2"), Doubling(**work), units, written.take, stop=stop)
    return written


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_processes_make_each_unit_once_and_tell_of_one_that_fails(tmp_path):
    before = children()
    carry_out(failing=(3, 11), folder=str(tmp_path)).check(40, but=(3, 11))
    assert len(list(tmp_path.iterdir())) == 2
    assert children() == before


def test_a_process_that_is_killed_ends_the_run_in_a_line_with_its_signal():
    before, written = children(), Written()
    with pytest.raises(UnavailableError) as caught:
        carry_out(written=written, deadly=(30,))
    assert "SIGKILL" in str(caught.value)
    assert len(written.taken) > 20
    assert 30 not in written.taken
    assert children() == before


def test_a_stop_ends_it():
    written = Written()
    carry_out(200, written, stop=lambda: len(written.taken) > 5)
    assert 5 < len(written.taken) < 200


def test_what_a_worker_refuses_ends_the_run():
    raised = {DataError: DataError, MemoryError: MemoryError, ImportError: UnavailableError}
    for refuses, error in raised.items():
        with pytest.raises(error):
            carry_out(refuses=refuses)


@pytest.mark.parametrize("on", ["there", "ray:", "processes", "processes:0", "processes:x", ""])
def test_other_workers_are_refused(on):
    with pytest.raises(UsageError):
        Workers(on=on)


DRIVER = """
import sys

from spsbench.settings.execution import Workers
from spsbench.workers.map_units import map_units
from tests.workers.doubling import Doubling

work = Doubling(seconds=60, folder=sys.argv[1])
map_units(Workers(on="processes:2"), work, range(4), print)
"""  # a script without a guard


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_stopped_processes_end_with_a_killed_driver(tmp_path):
    path = os.pathsep.join([os.getcwd(), *sys.path])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}
    )
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    driver.kill()
    driver.wait()
    assert wait_until(lambda: not any(map(is_alive, workers)))

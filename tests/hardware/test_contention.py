"""Other work on this machine: the threads that it leaves, and the timings that it disturbs."""

import os
import subprocess
import sys

import pytest

from spsbench.hardware import contention
from spsbench.hardware.contention import HZ, ClockReading, read_clocks, was_disturbed

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", None)],
)
def test_a_quota_is_rounded_up(text, allowed, tmp_path):
    path = tmp_path / "cpu.max"
    assert contention.quota(path) is None
    path.write_text(text + "\n")
    assert contention.quota(path) == allowed


@pytest.mark.parametrize(
    ("usual", "others", "processors", "allowed", "left"),
    [
        (2, 0.0, 2, None, 2),
        (2, 0.3, 2, None, 2),  # a daemon now and then
        (2, 1.0, 2, None, 1),
        (2, 4.0, 2, None, 1),  # never none
        (16, 3.9, 16, None, 12),
        (8, 3.0, 64, None, 8),  # bound to some of many: there is room elsewhere
        (8, 60.0, 64, None, 4),
        (64, 0.0, 64, 2, 2),  # a container
        (64, 8.0, 64, 2, 2),  # whose share others leave alone
        (64, 63.0, 64, 2, 1),
    ],
)
def test_threads_that_have_a_processor_of_their_own(usual, others, processors, allowed, left):
    assert contention.threads_left(usual, others, processors, allowed) == left


def test_work_of_others_is_a_share_of_the_machine():
    before = ClockReading(wall=0.0, own=0.0, busy=100.0)
    alone = ClockReading(wall=10.0, own=8.0, busy=108.0)
    assert contention.other_work_share(before, alone) == 0.0
    assert not was_disturbed(before, alone)
    half = ClockReading(wall=10.0, own=8.0, busy=108.0 + 5.0 * CORES)
    assert contention.other_work_share(before, half) == pytest.approx(0.5, abs=0.01)
    assert was_disturbed(before, half)
    short = ClockReading(wall=0.001, own=0.0, busy=100.0 + 1 / HZ)
    assert not was_disturbed(before, short)  # a tick is no sign
    assert contention.other_work_share(before, ClockReading(wall=0.0, own=0.0, busy=105.0)) == 0.0


@pytest.mark.skipif(not contention.STAT.exists(), reason="the system does not tell")
def test_a_thread_of_another_process_is_seen_and_an_own_one_is_not():
    first = read_clocks()
    sum(range(2_000_000))
    second = read_clocks()
    assert second.wall > first.wall
    assert second.own > first.own
    spin = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(spin, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        before = read_clocks()
        seen = [contention.at_work() for _ in range(3)]
        assert contention.other_work_seconds(before, read_clocks()) > 0
        child.kill()
    assert max(seen) > 0.2


def test_without_the_systems_counts_the_load_average_decides(tmp_path, monkeypatch):
    nothing = read_clocks(tmp_path / "absent")
    assert nothing.busy is None
    assert contention.other_work_share(nothing, nothing) is None
    for average, is_loaded in ((0.0, False), (CORES + 5.0, True)):
        monkeypatch.setattr(os, "getloadavg", lambda average=average: (average, 0.0, 0.0))
        assert was_disturbed(nothing, nothing) is is_loaded

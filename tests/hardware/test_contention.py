"""Other work on this machine: the threads that it leaves, and the timings that it disturbs."""

import os
import threading

import pytest

from spsbench.hardware import contention
from spsbench.hardware.contention import HZ, Reading, busy_seconds, loaded, others, read_clocks


def machine(folder, every, own):
    """A made-up system with `every` threads at work, and a letter for each of this process."""
    stat = folder / "stat"
    stat.write_text(f"cpu  1 2 3 4\nprocs_running {every}\nprocs_blocked 7\n")
    for number, state in enumerate(own):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a name) R) {state} 1 2 3")
    (folder / "task" / "ended").mkdir()
    return {"stat": stat, "own_tasks": folder / "task"}


@pytest.mark.parametrize(
    ("every", "own", "others"), [(1, "R", 0), (3, "RS", 2), (3, "RSR", 1), (1, "RR", 0)]
)
def test_own_threads_are_no_others(every, own, others, tmp_path):
    assert contention.at_work(seconds=0, **machine(tmp_path, every, own)) == others


def test_nobody_is_seen_where_the_system_tells_nothing(tmp_path):
    stat = tmp_path / "stat"
    for text in (None, "cpu 1 2\n"):
        if text:
            stat.write_text(text)
        assert contention.running(stat) is None
        assert contention.at_work(seconds=0, stat=stat) == 0


@pytest.mark.skipif(not contention.OWN.is_dir(), reason="the system does not tell")
def test_threads_of_this_process_that_run_are_seen():
    done = threading.Event()
    sleeper = threading.Thread(target=done.wait)
    sleeper.start()
    try:
        assert 1 <= contention.own_running() <= len(os.listdir(contention.OWN))
    finally:
        done.set()
        sleeper.join()
    every = contention.running()
    assert every is not None
    assert every >= 1


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


CORES = os.cpu_count() or 1


def test_work_of_others_is_a_share_of_the_machine():
    before = Reading(wall=0.0, own=0.0, busy=100.0)
    alone = Reading(wall=10.0, own=8.0, busy=108.0)
    assert others(before, alone) == 0.0
    assert not loaded(before, alone)
    half = Reading(wall=10.0, own=8.0, busy=108.0 + 5.0 * CORES)
    assert others(before, half) == pytest.approx(0.5, abs=0.01)
    assert loaded(before, half)


def test_a_tick_over_a_short_sample_is_no_sign():
    before = Reading(wall=0.0, own=0.0, busy=0.0)
    assert not loaded(before, Reading(wall=0.001, own=0.0, busy=1 / HZ))
    assert others(before, Reading(wall=0.0, own=0.0, busy=5.0)) == 0.0


def test_the_clocks_of_this_machine_run():
    first = read_clocks()
    sum(range(2_000_000))
    second = read_clocks()
    assert second.wall > first.wall
    assert second.own >= first.own
    if first.busy is not None and second.busy is not None:
        assert second.busy >= first.busy


def test_without_the_systems_counts_the_load_average_decides(tmp_path):
    assert busy_seconds(tmp_path / "absent") is None
    nothing = Reading(wall=0.0, own=0.0, busy=None)
    assert not loaded(nothing, nothing, average=0.0)
    assert loaded(nothing, nothing, average=CORES + 5.0)

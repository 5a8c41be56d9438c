"""Other work on the machine during a timed sample is noticed."""

import os

import pytest

from spsbench.hardware import contention as load_guard
from spsbench.hardware.contention import HZ, Reading, busy_seconds, loaded, others, read_clocks

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


def test_without_the_systems_counts_the_load_average_decides(monkeypatch, tmp_path):
    monkeypatch.setattr(load_guard, "STAT", tmp_path / "absent")
    assert busy_seconds() is None
    nothing = Reading(wall=0.0, own=0.0, busy=None)
    for average, said in ((0.0, False), (CORES + 5.0, True)):
        monkeypatch.setattr(load_guard.os, "getloadavg", lambda average=average: (average, 0, 0))
        assert loaded(nothing, nothing) is said

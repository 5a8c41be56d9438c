"""What others do on this machine decides how many threads have a processor of their own."""

import os
import threading

import pytest

from spsbench.hardware import contention


def machine(folder, monkeypatch, every, own):
    """A made-up system with `every` threads at work, and a letter for each of this process."""
    stat = folder / "stat"
    stat.write_text(f"cpu  1 2 3 4\nprocs_running {every}\nprocs_blocked 7\n")
    for number, state in enumerate(own):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a name) R) {state} 1 2 3")
    (folder / "task" / "ended").mkdir()
    monkeypatch.setattr(contention, "STAT", stat)
    monkeypatch.setattr(contention, "OWN", folder / "task")


@pytest.mark.parametrize(
    ("every", "own", "others"), [(1, "R", 0), (3, "RS", 2), (3, "RSR", 1), (1, "RR", 0)]
)
def test_own_threads_are_no_others(every, own, others, tmp_path, monkeypatch):
    machine(tmp_path, monkeypatch, every, own)
    assert contention.at_work(seconds=0) == others


def test_nobody_is_seen_where_the_system_tells_nothing(tmp_path, monkeypatch):
    for text in (None, "cpu 1 2\n"):
        if text:
            (tmp_path / "stat").write_text(text)
        monkeypatch.setattr(contention, "STAT", tmp_path / "stat")
        assert contention.running() is None
        assert contention.at_work(seconds=0) == 0


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
def test_a_quota_is_rounded_up(text, allowed, tmp_path, monkeypatch):
    monkeypatch.setattr(contention, "QUOTA", tmp_path / "cpu.max")
    assert contention.quota() is None
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert contention.quota() == allowed


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

"""Killed at any time, a run loses at most the record in progress, and ends up the same."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from spsbench.store.log import encode, iterate
from tests.store import made

COUNT = 120


def start(folder, acknowledged, count=COUNT):
    """The program of `made.py`; -S, because it needs msgspec alone, which is beside the package."""
    command = [sys.executable, "-S", made.__file__, str(folder), str(count)]
    path = os.pathsep.join([str(root()), str(Path(msgspec.__file__).parents[1])])
    return subprocess.Popen(command, stdout=acknowledged, env={"PYTHONPATH": path})


def root():
    return Path(made.__file__).parents[2]


def kill_often(folder, kills):
    """Run, kill, check, again; a run that comes to its end makes room for another."""
    draw = random.Random(kills)
    expected = [encode(n, {"attempt": 1, **made.record(n).to_json()}) for n in range(COUNT)]
    runs = 0
    acknowledged = folder / "acknowledged"
    while kills:
        log = folder / str(runs) / "records-00-of-01.jsonl"
        before = log.read_bytes().count(b"\n") if log.exists() else 0
        until = min(COUNT, before + draw.randrange(COUNT // 6))
        with acknowledged.open("wb") as file, start(log.parent, file) as child:
            while child.poll() is None:
                if log.exists() and log.stat().st_size >= sum(map(len, expected[:until])):
                    time.sleep(draw.random() * 0.004)  # anywhere within a record
                    child.kill()
                    break
        told = [int(line) for line in acknowledged.read_text().splitlines()]
        found = len(list(iterate(log)))
        assert told == list(range(before, before + len(told)))  # none lost, none twice
        assert before + len(told) <= found <= before + len(told) + 1
        assert log.read_bytes().startswith(b"".join(expected[:found]))
        if child.returncode == 0:
            assert log.read_bytes() == b"".join(expected)
            runs += 1
        else:
            assert child.returncode == -9
            kills -= 1
    with acknowledged.open("wb") as file, start(log.parent, file) as child:
        assert child.wait() == 0
    assert log.read_bytes() == b"".join(expected)  # as if it had never been killed


def test_eight_kills_lose_nothing(tmp_path):
    kill_often(tmp_path, 8)


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(tmp_path):
    kill_often(tmp_path, 200)


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    with open(os.devnull, "wb") as nowhere, start(tmp_path / "run", nowhere) as child:
        while not (tmp_path / "run" / "records-00-of-01.jsonl").exists():
            assert child.poll() is None
        child.kill()
    with open(os.devnull, "wb") as nowhere, start(tmp_path / "run", nowhere, 1) as child:
        assert child.wait() == 0

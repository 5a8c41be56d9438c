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


def start(folder, acknowledged):
    """The program of `made.py`; -S, because it needs msgspec alone, which is beside the package."""
    command = [sys.executable, "-S", made.__file__, str(folder), str(COUNT)]
    path = os.pathsep.join(
        [str(Path(made.__file__).parents[2]), str(Path(msgspec.__file__).parents[1])]
    )
    return subprocess.Popen(command, stdout=acknowledged, env={"PYTHONPATH": path})


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_lose_nothing_that_was_acknowledged(kills, tmp_path):
    """Run, kill, check, again; a run that comes to its end makes room for another."""
    draw = random.Random(kills)
    expected = [encode(n, {"attempt": 1, **made.record(n).to_json()}) for n in range(COUNT)]
    runs, acknowledged = 0, tmp_path / "acknowledged"
    while kills >= 0:
        log = tmp_path / str(runs) / "records-00-of-01.jsonl"
        before = log.read_bytes().count(b"\n") if log.exists() else 0
        until = min(COUNT, before + draw.randrange(COUNT // 6)) if kills else COUNT + 1
        with acknowledged.open("wb") as file, start(log.parent, file) as child:
            while child.poll() is None:
                if log.exists() and log.stat().st_size >= sum(map(len, expected[:until])) and kills:
                    time.sleep(draw.random() * 0.004)  # anywhere within a record
                    child.kill()
                    break
        told = [int(line) for line in acknowledged.read_text().splitlines()]
        count = len(list(iterate(log)))
        assert told == list(range(before, before + len(told)))  # none lost, none twice
        assert before + len(told) <= count <= before + len(told) + 1
        assert log.read_bytes().startswith(b"".join(expected[:count]))
        if child.returncode == 0:
            assert log.read_bytes() == b"".join(expected)  # as if it had never been killed
            runs += 1
            if not kills:
                break
        else:
            assert child.returncode == -9
            kills -= 1

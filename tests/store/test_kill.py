"""Killed at any time, a run loses at most the record in progress, and ends up the same."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from spsbench.store.log import iterate
from spsbench.store.records import placed_records
from tests.store import made

COUNT = 120


def start(folder, acknowledged):
    """The program of `made.py`; -S, because it needs msgspec alone, which is beside the package."""
    command = [sys.executable, "-S", made.__file__, str(folder), str(COUNT)]
    path = os.pathsep.join(
        [str(Path(made.__file__).parents[2]), str(Path(msgspec.__file__).parents[1])]
    )
    return subprocess.Popen(command, stdout=acknowledged, env={"PYTHONPATH": path})


def records_in(log):
    """Return the lines of a log that are of records."""
    values = list(iterate(log)) if log.exists() else []
    return [line for line in values if "start" not in line]


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_lose_nothing_that_was_acknowledged(kills, tmp_path):
    """Run, kill, check, again; a run that comes to its end makes room for another."""
    draw = random.Random(kills)
    expected = [{"attempt": 1, **made.record(n).to_json()} for n in range(COUNT)]
    runs, acknowledged, manifest = 0, tmp_path / "acknowledged", b""
    while kills >= 0:
        log = tmp_path / str(runs) / "records-00-of-01.jsonl"
        before = len(records_in(log))
        until = min(COUNT, before + draw.randrange(COUNT // 6)) if kills else COUNT + 1
        with acknowledged.open("wb") as file, start(log.parent, file) as child:
            while child.poll() is None:
                if log.exists() and log.read_bytes().count(b'"cell":') >= until and kills:
                    time.sleep(draw.random() * 0.004)  # anywhere within a record
                    child.kill()
                    break
        told = [int(line) for line in acknowledged.read_text().splitlines()]
        records = records_in(log)
        assert told == list(range(before, before + len(told)))  # none lost, none twice
        assert before + len(told) <= len(records) <= before + len(told) + 1
        assert records == expected[: len(records)]
        path = log.with_name("manifest.json")
        content = path.read_bytes() if path.exists() else b""
        assert manifest in (b"", content)  # a resume does not change it
        manifest = content
        if child.returncode == 0:  # as if it had never been killed, and each with its provenance
            placed = list(placed_records(log.parent))
            assert all(start.provenance == made.HERE for start, _ in placed)
            assert records == expected
            runs, manifest = runs + 1, b""
            if not kills:
                break
        else:
            assert child.returncode == -9
            kills -= 1

import errno
import os
import random
import subprocess
import sys

import pytest

from spsbench.errors import WriteError
from spsbench.store.atomic import check_replaceable, create_file, replace_file

REPLACE = """
import sys
from pathlib import Path
from spsbench.store.atomic import replace_file
for n in range(10_000):
    replace_file(Path(sys.argv[1]), (f"{n} " * 2000).encode())
    print(n, flush=True)
"""


def test_killed_it_leaves_the_old_file_or_the_new(tmp_path):
    path = tmp_path / "summary.json"
    draw = random.Random(0)
    for _ in range(4):
        command = [sys.executable, "-S", "-c", REPLACE, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            for _ in range(draw.randrange(1, 20)):
                child.stdout.readline()
            for _ in range(200):  # a reader sees it whole at any time
                words = path.read_text().split()
                assert len(words) == 2000
                assert len(set(words)) == 1
            child.kill()
        words = path.read_text().split()
        assert len(words) == 2000
        assert len(set(words)) == 1


def test_replace_file_writes_into_a_pipe_and_leaves_it(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(WriteError):  # nobody reads it
        replace_file(path, b"lost")
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    replace_file(path, b"told")
    assert os.read(reading, 9) == b"told"
    os.close(reading)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path):
    check_replaceable(tmp_path / "new.html")
    (tmp_path / "file").write_text("x")
    check_replaceable(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"
    for place in (tmp_path, tmp_path / "absent" / "a", tmp_path / "file" / "a"):
        with pytest.raises(WriteError):
            check_replaceable(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, error):
    path = tmp_path / "summary.json"
    replace_file(path, b"old")

    def fail(file):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises((WriteError, KeyboardInterrupt)):
            replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert not create_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

import errno
import os

import pytest

from spsbench.errors import WriteError
from spsbench.store.atomic import check_replaceable, create_file, replace_file


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

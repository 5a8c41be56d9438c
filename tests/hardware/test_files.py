"""Files: none without end is read, and no pipe is waited for."""

import os
from pathlib import Path

import pytest

from spsbench.hardware.files import open_file, read_file


def test_read_file_returns_the_content_up_to_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path) == read_file(path, 5) == b"12345"
    with pytest.raises(OSError):
        read_file(path, 4)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_read_file_refuses_a_device(device):
    with pytest.raises(OSError):
        read_file(Path(device))


def test_read_file_does_not_wait_for_a_pipe_that_nobody_writes(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert read_file(path) == b""


def test_read_file_reads_a_pipe_to_its_end():
    reading, writing = os.pipe()  # as a shell's <(command)
    os.write(writing, b"told")
    os.close(writing)
    with open_file(Path(f"/dev/fd/{reading}")) as file:
        os.close(reading)
        assert file.read() == b"told"


def test_open_file_refuses_a_folder(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)

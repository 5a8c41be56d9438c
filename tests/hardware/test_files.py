"""Files: none without end is read."""

from pathlib import Path

import pytest

from spsbench.hardware.files import read_file


def test_read_file_returns_the_content_up_to_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path) == read_file(path, 5) == b"12345"
    with pytest.raises(OSError):
        read_file(path, 4)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_read_file_refuses_a_device(device):
    with pytest.raises(OSError):
        read_file(Path(device), 4096)

"""Folders that other users may enter: pytest's own are private."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sps-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)

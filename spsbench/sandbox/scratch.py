"""Scratch folders of programs, and those that a killed scorer left."""

import os
import re
import shutil
import tempfile
from pathlib import Path

PREFIX = "sps-program-"
_NAME = re.compile(rf"{PREFIX}(\d+)-.*")


def new_scratch() -> str:
    """A new folder for one program, named after this process."""
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def sweep() -> None:
    """Remove our own folders whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        match = _NAME.fullmatch(folder.name)
        if match and folder.stat().st_uid in _ours() and not Path("/proc", match[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _ours() -> set[int]:
    from spsbench.sandbox.interpreter import NOBODY

    return {os.getuid(), NOBODY} if os.getuid() == 0 else {os.getuid()}

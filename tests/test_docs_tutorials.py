"""The tutorials: each command runs as it stands on the page, in one shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.S | re.M)
OF_A_NETWORK = r"make demo|source |.*--target smollm2"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs_fast
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_tutorial_run(page, tmp_path):
    lines = "".join(BLOCK.findall(page.read_text())).splitlines()
    script = [line for line in lines if not re.match(OF_A_NETWORK, line)]
    assert len(script) >= 4
    for name in ("docs", "tests", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, words in (("sps", "-m spsbench"), ("python", "")):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (binaries / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    command = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -em\n" + "\n".join(script)
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]

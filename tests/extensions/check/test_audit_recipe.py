"""`recipes/audit/audit.py`: rows of servers that hold, die and never speculate, and their table."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.oracles.stub import Engine, Stub, serving
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "audit" / "audit.py"


def command(tmp_path, rows):
    (tmp_path / "table.toml").write_text(rows)
    return [sys.executable, str(RECIPE), str(tmp_path / "table.toml"), str(tmp_path / "rows")]


def environment():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"SPS": f"{sys.executable} -m spsbench", "PYTHONPATH": path}


def test_rows_hold_or_say_why_and_one_with_a_result_is_not_run_again(tmp_path):
    rows = """
[defaults]
only = ["greedy"]
retries = 0
[[row]]
name = "plain"
url = "URL"
speculates = true
method = "a|b <img src=x> [c](d)"
[[row]]
serve = "sh -c 'exit 3'"
variants = [{name = "dies"}, {name = "ends", serve = "sh -c 'exit 4'"}]
"""
    with serving(Stub(Engine(k=0))) as url:
        line = command(tmp_path, rows.replace("URL", url))
        ran = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 6, ran.stderr
    table = (tmp_path / "rows" / "table.md").read_text()
    assert "| plain |" in table
    assert "cannot be decided" in table  # its counters say that nothing was drafted
    assert r"a\|b \<img src=x\> \[c\]\(d\)" in table
    assert "not run: the server ended with 3" in table
    assert "not run: the server ended with 4" in table
    assert json.loads((tmp_path / "rows" / "plain.json").read_text())["acceptance"]["drafted"] == 0
    assert (tmp_path / "rows" / "plain.jsonl").is_file()
    check = runpy.run_path(str(RECIPE))["check"]
    assert check({"name": "plain"}, tmp_path / "rows") == "cannot be decided"


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's death is Linux's")
def test_a_started_server_dies_with_the_recipe(tmp_path):
    rows = f'[[row]]\nname = "a"\nserve = ["sh", "-c", "echo $$ > {tmp_path}/pid; exec sleep 60"]\n'
    started = subprocess.Popen(command(tmp_path, rows), env=environment())
    while not (pid := tmp_path / "pid").is_file() or not pid.read_text().strip():
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert wait_until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())

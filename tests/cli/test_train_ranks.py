"""`sps train --parallel dp:2` as a user starts it: its ranks, one line, and a death among them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spsbench.errors import Exit
from tests.cli.test_train import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def started(target, out, *more):
    command = [sys.executable, "-m", "spsbench", "train", "draft", "--layers", "1"]
    flags = ("--target", target, "--out", str(out), *SMALL, "--parallel", "dp:2", *more)
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
    )


def test_two_ranks_train_as_one_command(target, tmp_path):
    process = started(target, tmp_path / "out", "--store-features", "--on-policy", "0.5")
    out, err = process.communicate(timeout=240)
    assert process.returncode == Exit.OK, err
    assert Path(out.strip()) == tmp_path / "out" / "result"
    assert err.count("step 4/4") == 1  # rank 0 alone speaks
    assert (tmp_path / "out" / "result" / "model.safetensors").exists()
    assert not (tmp_path / "out" / "features").exists()


def test_a_rank_that_is_killed_ends_it_with_a_line(target, tmp_path):
    process = started(target, tmp_path / "out", "--steps", "100000", "--evaluations", "1")
    until = time.monotonic() + 200
    while not list(tmp_path.glob("out/checkpoints/*")):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode not in (0, None)
    assert [line for line in err.splitlines() if line.startswith("error:")] == [
        line for line in err.splitlines() if "rank 1 failed: it was ended by SIGKILL" in line
    ]
    assert "Traceback" not in err

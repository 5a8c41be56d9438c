"""`sps ... --parallel`: the command starts its ranks itself, and ends with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.errors import UsageError
from spsbench.hardware.ranks import MissingRanksError
from spsbench.models.prepare import check_ranks
from spsbench.settings.cell_from_options import make_cell
from tests.cli.forked import Forked
from tests.processes import free_port, variables_of
from tests.waiting import wait_until

PATIENCE = 250  # seconds; a busy machine may need a minute to import torch
SPS = (sys.executable, "-m", "spsbench")
ASKED = ("generate", "--dtype", "float64", "--seed", "3", "--no-stats", "--threads", "1")
OVER_TWO = ("--parallel", "tp:2")


def ran(*arguments, text):
    command = [*SPS, *ASKED, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_two_ranks_that_were_started_write_the_text_of_one():
    asked = (*ASKED, "def f(", "--max-new-tokens", "8", "--offline")
    port = free_port()
    alone = Forked(*asked, env=os.environ)
    said, _ = alone.communicate()
    ranks = [
        Forked(*asked, "--parallel", "tp", env=os.environ | variables_of(rank, 2, port))
        for rank in (0, 1)
    ]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in (alone, *ranks)] == [0, 0, 0], told
    assert said
    assert [out for out, _ in told] == [said, b""], "rank 1 is silent"


@pytest.mark.slow
@pytest.mark.cluster
def test_the_command_writes_the_text_of_one_rank():
    """Its prompt comes from standard input, which rank 0 alone reads."""
    asked = ("-", "--max-new-tokens", "20")
    alone, together = ran(*asked, text="def f("), ran(*asked, *OVER_TWO, text="def f(")
    assert (alone.returncode, together.returncode) == (0, 0), together.stderr
    assert together.stdout == alone.stdout
    assert said_in(together) == said_in(alone), "rank 1 is silent"


def said_in(done):
    """Return the lines of a command but for those that depend on how busy the machine is."""
    lines = done.stderr.splitlines()
    return [line for line in lines if not line.endswith("...") and "machine is busy" not in line]


def rank_of(pid):
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next((word[5:] for word in words if word.startswith("RANK=")), "")


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("rank", "hit", "line"),
    [
        ("0", signal.SIGKILL, "rank 0 failed: it was ended by SIGKILL"),
        ("1", signal.SIGKILL, "rank 1 failed: it was ended by SIGKILL"),
        ("0", signal.SIGSTOP, "a rank has not answered for 5 s (rank 1 waits"),
        ("1", signal.SIGSTOP, "error: a rank has not answered for 5 s (rank 0 waits"),
    ],
)
def test_a_rank_that_is_killed_or_stopped_ends_the_command_in_a_line(rank, hit, line, tmp_path):
    out = tmp_path / "out"
    command = [*SPS, *ASKED, "x", "--max-new-tokens", "900", "--ignore-eos", *OVER_TWO]
    command += ["--rank-timeout", "5"]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: out.stat().st_size)
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = " ".join(each.read_text() for each in tasks).split()
        victims = [pid for pid in children if rank_of(pid) == rank]
        os.kill(int(victims[0]), hit)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 69
    lines = [line for line in told.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert line in lines[0]
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists() and rank_of(pid)]


def test_what_ranks_cannot_be(monkeypatch):
    for wrong in ("tp:1", "pp:2", "2", "auto"):
        with pytest.raises(UsageError):
            make_cell(parallel=wrong)
    with pytest.raises(UsageError):
        make_cell(parallel="tp")
    with pytest.raises(UsageError):
        check_ranks(make_cell(parallel="tp:2", random_weights=True).models)
    started = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    cell = make_cell(parallel="tp")
    assert (cell.target.parallel, cell.ranks) == ("tp:2", 2)
    assert cell.draft.parallel is None, "a draft model is not shared unless it is asked for"
    with pytest.raises(UsageError):
        make_cell(parallel="tp:4")


def test_ranks_without_an_address_are_one_line():
    for absent in ("MASTER_ADDR", "MASTER_PORT"):
        env = os.environ | variables_of(0, 2, 1)
        del env[absent]
        ended = Forked(*ASKED, "x", "--parallel", "tp", env=env)
        _, said = ended.communicate()
        assert ended.returncode == 2
        assert said.startswith(f"error: RANK without {absent} (environment)".encode()), said
        assert said.count(b"\n") == 1


def test_a_library_without_ranks_says_how_to_start_them():
    with pytest.raises(MissingRanksError) as caught:
        check_ranks(make_cell(parallel="tp:2").models)
    assert caught.value.size == 2

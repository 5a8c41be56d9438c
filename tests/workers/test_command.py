"""`sps ... --parallel` over ranks that torchrun has started."""

import os
import signal
import sys

import pytest

from spsbench.errors import UsageError
from spsbench.models.prepare import check_ranks
from spsbench.settings.cell_from_options import make_cell
from tests.cli.forked import Forked
from tests.processes import free_port, variables_of
from tests.waiting import wait_until

PATIENCE = 250  # seconds; a busy machine may need a minute to import torch
SPS = (sys.executable, "-m", "spsbench")
ASKED = ("generate", "--dtype", "float64", "--seed", "3", "--no-stats", "--threads", "1")
OVER_TWO = ("--parallel", "tp:2")


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
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_ends_the_other_in_a_line(rank, number):
    asked = (*ASKED, "x", "--max-new-tokens", "900", "--ignore-eos", "--rank-timeout", "5")
    port = free_port()
    both = [
        Forked(*asked, "--parallel", "tp", env=os.environ | variables_of(n, 2, port))
        for n in (0, 1)
    ]
    os.read(both[0]._out, 1)  # the loop runs
    both[rank].send_signal(number)
    other = both[1 - rank]
    assert wait_until(lambda: other.poll() is not None)
    both[rank].kill()
    _, err = other.communicate()
    assert other.returncode == 69
    if rank == 1:
        assert len([line for line in err.decode().splitlines() if line.startswith("error:")]) == 1


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
    with pytest.raises(UsageError) as caught:
        check_ranks(make_cell(parallel="tp:2").models)
    assert "torchrun --nproc-per-node 2" in str(caught.value)

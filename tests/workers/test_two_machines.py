"""One target over two machines, imitated by two network namespaces that a virtual cable joins.

As root: `torchrun --nnodes 2 -m spsbench generate --parallel tp` writes what one rank writes, and
both machines end when the cable is pulled.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.workers.namespaces import CABLE, address, lacking, pull, two_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1000)]

SPS = ("-m", "spsbench")
ASKED = ("generate", "def f(", "--dtype", "float64", "--seed", "3", "--no-stats", "--offline")
WITHIN = 400  # seconds; a busy machine may need a minute to import torch
TIMEOUT = 30  # --rank-timeout when the cable is pulled; a busy machine is no stall
ENDS = 120  # seconds after which both must have ended


class Machines:
    """Two namespaces, and what runs in them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._made: list[subprocess.Popen[str]] = []

    def torchrun(self, *words: str) -> list[subprocess.Popen[str]]:
        """The same program on both, a rank each."""
        found = []
        for number, name in enumerate(self.names):
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"]
            command += ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
            command += ["--master-addr", address(1), "--master-port", "29511", *words]
            told = {"GLOO_SOCKET_IFNAME": CABLE, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command,
                env=os.environ | told,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            found.append(process)
        self._made += found
        return found

    def close(self) -> None:
        """End what runs there."""
        for process in self._made:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def machines() -> Iterator[Machines]:
    """Two, until the end."""
    with two_namespaces() as names:
        made = Machines(names)
        try:
            yield made
        finally:
            made.close()


def first_word(both: list[subprocess.Popen[str]]) -> bool:
    """Wait until one of them writes."""
    streams = [process.stdout for process in both if process.stdout is not None]
    for stream in streams:
        os.set_blocking(stream.fileno(), False)
    until = time.monotonic() + WITHIN
    while time.monotonic() < until and all(process.poll() is None for process in both):
        for stream in streams:
            with contextlib.suppress(BlockingIOError):
                if os.read(stream.fileno(), 1 << 16):
                    return True
        time.sleep(0.1)
    return False


@pytest.fixture
def here():
    if (why := lacking()) is not None:
        pytest.skip(f"two machines cannot be imitated: {why}")
    with machines() as pair:
        yield pair


def test_two_ranks_on_two_machines_write_the_text_of_one(here):
    words = (*SPS, *ASKED, "--max-new-tokens", "20")
    alone = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=WITHIN, check=True
    )
    both = here.torchrun(*words, "--parallel", "tp")
    streams = [process.communicate(timeout=WITHIN) for process in both]
    assert [process.returncode for process in both] == [0, 0], streams
    assert "".join(out for out, _ in streams) == alone.stdout


def test_both_machines_end_when_the_cable_is_pulled(here):
    words = (*SPS, *ASKED, "--max-new-tokens", "900", "--ignore-eos", "--parallel", "tp")
    both = here.torchrun(*words, "--rank-timeout", str(TIMEOUT))
    assert first_word(both)
    pull(here.names[0])
    assert all(process.wait(ENDS) for process in both)
    assert any("has not answered" in process.communicate()[1] for process in both)

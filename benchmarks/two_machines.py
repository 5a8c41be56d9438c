"""One target over two machines, imitated by two network namespaces that a virtual cable joins.

    sudo .venv/bin/python benchmarks/two_machines.py            # both, as root
    sudo .venv/bin/python benchmarks/two_machines.py --only text

text: `torchrun --nnodes 2 -m spsbench generate --parallel tp` writes what one rank writes;
cable: it is pulled while they generate, and both machines must end within the limit.
Prints an object for each; the exit code is the number of those that went wrong. Both machines share
the processors of this one, so that times are upper bounds.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from namespaces import CABLE, address, lacking, pull, two_namespaces

SPS = ("-m", "spsbench")
ASKED = ("generate", "def f(", "--dtype", "float64", "--seed", "3", "--no-stats", "--offline")
WITHIN = 400  # seconds; a busy machine may need a minute to import torch
TIMEOUT = 5  # --rank-timeout when the cable is pulled
ENDS = 60  # seconds after which both must have ended


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


def text(here: Machines) -> dict[str, Any]:
    """Whether both together write what one rank does."""
    words = (*SPS, *ASKED, "--max-new-tokens", "20")
    alone = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=WITHIN, check=True
    )
    both = here.torchrun(*words, "--parallel", "tp")
    told = [process.communicate(timeout=WITHIN) for process in both]
    codes = [process.returncode for process in both]
    written = "".join(out for out, _ in told)
    right = codes == [0, 0] and written == alone.stdout
    return {"right": right, "codes": codes, "text": written} | (
        {} if right else {"told": [err[-500:] for _, err in told]}
    )


def cable(here: Machines) -> dict[str, Any]:
    """Seconds from pulling it to the end of both, and the lines that say why."""
    words = (*SPS, *ASKED, "--max-new-tokens", "900", "--ignore-eos", "--parallel", "tp")
    both = here.torchrun(*words, "--rank-timeout", str(TIMEOUT))
    writing = _first_word(both)
    pull(here.names[0])
    began, ends = time.monotonic(), {}
    while len(ends) < 2 and time.monotonic() - began < ENDS:
        for number, process in enumerate(both):
            if process.poll() is not None:
                ends.setdefault(number, round(time.monotonic() - began, 1))
        time.sleep(0.1)
    right = writing and len(ends) == 2 and all(process.returncode for process in both)
    for process in both:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    told = "".join(process.communicate()[1] for process in both)
    lines = [line for line in told.splitlines() if "has not answered" in line]
    return {"right": bool(right and lines), "seconds": list(ends.values()), "lines": lines}


def _first_word(both: list[subprocess.Popen[str]]) -> bool:
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


EVERY = {"text": text, "cable": cable}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=EVERY, help="one of them")
    asked = parser.parse_args()
    if (why := lacking()) is not None:
        sys.exit(f"two machines cannot be imitated: {why}")
    wrong = 0
    for name, show in EVERY.items():
        if asked.only in (None, name):
            with machines() as here:
                found = show(here)
            wrong += not found["right"]
            print(json.dumps({name: found}), flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()

"""Two machines imitated by network namespaces of this one, with a cable between them."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import wait_until
from tests.workers.namespaces import address, two_namespaces

PORT = 6399
PATIENCE = 240.0


class Node:
    """One machine: a namespace with an address.

    Args:
        name: of the namespace.
        where: its address.
        folder: of what commands on it print.
    """

    def __init__(self, name: str, where: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, where, folder

    def popen(self, told: Path, *command: str, environment: dict[str, str] | None = None):
        """A command on it, which prints into a file: what it leaves behind would keep a pipe."""
        with told.open("w") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env={**os.environ, **OURS, **(environment or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,  # Ray has workers import from the directory of the driver first
            )

    def run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        """What it printed."""
        told = self.folder / f"{self.name}.out"
        code = self.popen(told, *command, environment=environment).wait(PATIENCE)
        if code:
            raise RuntimeError(f"{' '.join(command)}: {told.read_text()}")
        return told.read_text()

    def ray(self, *more: str, environment: dict[str, str] | None = None) -> None:
        """Begin a part of a cluster with one core; `more` says which."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *more]
        command += [f"--node-ip-address={self.address}", "--num-cpus=1"]
        command += ["--object-store-memory=100000000", "--disable-usage-stats", "--log-color=false"]
        self.run(*command, environment=environment)

    def processes(self, part: str) -> list[int]:
        """Those on it whose command has `part` in it."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        found = []
        for pid in listed.stdout.split():
            with suppress(OSError):
                if part.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
        return found

    def end(self, part: str = "") -> None:
        """Kill what runs on it."""
        for pid in self.processes(part):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


OURS = {
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "200",
    "RAY_AUTH_MODE": "token",  # Ray has it on wherever it finds a token, and off elsewhere
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two of them that see each other and nothing else."""
    with two_namespaces() as names:
        one, two = (Node(name, address(n), folder) for n, name in enumerate(names, start=1))
        try:
            yield one, two
        finally:
            for node in (one, two):
                wait_until(lambda node=node: node.end() or not node.processes(""))

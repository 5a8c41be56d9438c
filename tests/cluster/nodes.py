"""Two machines imitated by network namespaces of this one, with a cable between them."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NET = "198.18.231"  # of the block that is set aside for tests of networks (RFC 2544)
PORT = 6399
PATIENCE = 240.0


def why_not() -> str | None:
    """Why there can be none here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no `ip` here: apt-get install iproute2"
    name = f"sps{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Node:
    """One machine: a namespace with an address.

    Args:
        number: 1 or 2.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.address = f"sps{os.getpid()}-{number}", f"{NET}.{number}"
        self.folder = folder

    def popen(self, told: Path, *command: str, environment: dict[str, str] | None = None):
        """A command on it, which prints into a file: what it leaves behind would keep a pipe."""
        with told.open("w") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env={**os.environ, **OURS, **(environment or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
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
    one, two = Node(1, folder), Node(2, folder)
    try:
        for node in (one, two):
            ip("netns", "add", node.name)
            ip("-n", node.name, "link", "set", "lo", "up")
        ends = [f"s{os.getpid() % 10**7}-{n}" for n in (1, 2)]
        cable = ["link", "add", ends[0], "netns", one.name, "type", "veth"]
        ip(*cable, "peer", "name", ends[1], "netns", two.name)
        for node, end in zip((one, two), ends, strict=True):
            ip("-n", node.name, "addr", "add", f"{node.address}/24", "dev", end)
            ip("-n", node.name, "link", "set", end, "up")
        yield one, two
    finally:
        for node in (one, two):
            until = time.monotonic() + 10
            while node.processes("") and time.monotonic() < until:
                node.end()
                time.sleep(0.1)
            subprocess.run(["ip", "netns", "del", node.name], check=False, capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)

"""Starts of a run: a command as a user gives it, or a fork of a process that has imported torch.

Imports take ten seconds of a processor, the work of these runs a few: so most kills would meet
imports alone. A fork runs the same command and the same worker from there on.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked import fork, sps
from killing.seen import MARK, Life, began
from killing.work import Work

STEP = 0.01  # seconds between two looks at whether something has ended


class Started:
    """A real command."""

    def __init__(self, arguments: list[str], place: str) -> None:
        self.mark = uuid.uuid4().hex[:6]
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - as long as it runs
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spsbench", *arguments],
            env={**os.environ, MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self._told,
            stderr=subprocess.STDOUT,
        )

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None: it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """At once."""
        self._process.kill()

    @property
    def told(self) -> str:
        """What it printed."""
        self._told.seek(0)
        return self._told.read().decode()[-2000:]


class Forked:
    """The same command in a fork; its workers are forks as well."""

    def __init__(self, arguments: list[str], place: str) -> None:
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - as long as it runs
        self._pid = fork(lambda: command(arguments, place, self._told.fileno()))
        self.mark = str(self._pid)
        self._code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None: it goes on."""
        until = time.monotonic() + seconds
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(STEP)
        return self._code

    def kill(self) -> None:
        """At once."""
        os.kill(self._pid, signal.SIGKILL)

    told = Started.told


class Drivers:
    """Starts runs of one kind.

    Args:
        kind: `Started` or `Forked`.
    """

    def __init__(self, kind: type[Started] | type[Forked]) -> None:
        self._kind, self._nursery = kind, 0
        self._folder = tempfile.TemporaryDirectory()
        self._place = f"{self._folder.name}/nursery"
        if kind is Forked:
            load()
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(self._place)
            listening.listen(64)
            self._nursery = fork(lambda: nurse(listening))
            listening.close()

    def start(self, work: Work, folder: Path, on: str) -> Any:
        """Begin or go on with a run."""
        return self._kind(work.arguments(folder, on), self._place)

    def close(self) -> None:
        """End what forks."""
        if self._nursery:
            os.kill(self._nursery, signal.SIGKILL)
            os.waitpid(self._nursery, 0)
        self._folder.cleanup()


def load() -> None:
    """What commands and workers import."""
    import datasets  # noqa: F401

    from spsbench.tasks.metrics.metric import rouge2_metric

    rouge2_metric()


def command(arguments: list[str], place: str, told: int) -> int:
    """`sps` with these arguments; its workers come from the nursery."""
    import spsbench.distributed.processes as processes

    os.setsid()
    for stream in (1, 2):
        os.dup2(told, stream)
    processes.subprocess = Nursery(place)  # type: ignore[assignment]
    return sps(arguments)


class Nursery:
    """Stands for `subprocess`: a worker is a fork of another process than the driver."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, place: str) -> None:
        self._place = place

    def Popen(self, arguments: list[str], pass_fds: list[int], **_: Any) -> "Child":  # noqa: N802
        """Ask for one: its name, and its end of a pipe."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(self._place)
            socket.send_fds(asking, [f"{os.getpid()} {arguments[-2]}".encode()], pass_fds)
            return Child(int(asking.recv(20)))


class Child:
    """A worker that is not the driver's own child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._life = Life(pid, began(pid), "")

    def kill(self) -> None:
        """At once."""
        if self._life.is_there:
            self._life.kill()

    def wait(self, seconds: float | None = None) -> int:
        """As ended by SIGKILL: nobody here knows better."""
        until = time.monotonic() + (60.0 if seconds is None else seconds)
        while self._life.is_there:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("worker", 0.0)
            time.sleep(STEP)
        return -signal.SIGKILL


def nurse(listening: socket.socket) -> int:
    """Fork workers for whoever asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        asking, _ = listening.accept()
        with asking:
            asked, descriptors, _, _ = socket.recv_fds(asking, 200, 1)
            if not descriptors:  # the driver was killed meanwhile
                continue
            driver, _, name = asked.decode().partition(" ")
            listening_too = (listening, asking)
            pid = fork(lambda: worked(name, driver, descriptors[0], listening_too))  # noqa: B023
            os.close(descriptors[0])
            with suppress(OSError):
                asking.send(str(pid).encode())


def worked(name: str, driver: str, descriptor: int, sockets: tuple[socket.socket, ...]) -> int:
    """A worker, until its pipe ends."""
    from spsbench.distributed.child import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in sockets:
        each.close()
    Path("/proc/self/comm").write_text(f"worker-{driver}")
    main(name, descriptor)
    return 0

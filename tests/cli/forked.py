"""The command in a fork of this process: a process of its own that has no imports to wait for.

It has its own pid, streams, signals and environment, and it can be killed, stopped and interrupted.
What belongs to a start (imports, variables of the interpreter) is not in it: tests of those start
the program itself.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import torch

from tests.processes import fork, sps


class Forked:
    """As much of `subprocess.Popen` as tests need."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        terminal: int | None = None,
        stdin: bytes = b"",
    ) -> None:
        """All streams are pipes, stdin with what it is given; or it and stdout are `terminal`."""
        sys.stdout.flush()
        sys.stderr.flush()
        asked, said, errors = os.pipe(), os.pipe(), os.pipe()
        os.write(asked[1], stdin)  # less than a pipe holds
        os.close(asked[1])
        self.returncode: int | None = None
        streams = terminal or asked[0], terminal or said[1], errors[1]
        self.pid = fork(lambda: run(arguments, env, streams))
        for end in asked[0], said[1], errors[1]:
            os.close(end)
        self._out, self._err = said[0], errors[0]

    def poll(self) -> int | None:
        """Its code, if it has ended; negative: the signal that ended it."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To it, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> tuple[bytes, bytes]:
        """All that it has written to stdout and stderr, when it has ended."""
        until = time.monotonic() + timeout
        content = {self._out: b"", self._err: b""}
        open_ones = list(content)
        while open_ones:
            ready = select.select(open_ones, [], [], max(0.0, until - time.monotonic()))[0]
            if not ready:
                raise subprocess.TimeoutExpired("sps", timeout)
            for each in ready:
                part = os.read(each, 65536)
                content[each] += part
                if not part:
                    open_ones.remove(each)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("sps", timeout)
            time.sleep(0.002)
        for each in content:
            os.close(each)
        return content[self._out], content[self._err]


def run(arguments: tuple[str, ...], env: Mapping[str, str], streams: tuple[int, int, int]) -> int:
    """Be the command; its exit code."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    coded = env.get("PYTHONIOENCODING")
    sys.stdin = open(0, encoding=coded, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=coded, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=coded, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under nohup ignores it
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    return sps(arguments)

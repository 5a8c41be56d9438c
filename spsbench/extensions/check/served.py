"""Servers that rows of a matrix start, kept while the next row has the same command."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from spsbench.errors import SpsError, UnavailableError, first_line
from spsbench.extensions.check.matrix import PORT
from spsbench.foreign import cut

PAUSE = 0.2  # seconds between two looks at a server that starts
PATIENCE = 30.0  # seconds in which a server must end by SIGTERM
GRACE = 5.0  # seconds: the sockets of a process that dies close before its parent is told
TAIL = 1 << 16  # bytes of a log that are searched for the reason of an end
LONGEST_REASON = 200
RAISED = re.compile(r"(?:\([^)]*\) *)?(?:ERROR( \S+){3} +)?[\w.]*(?:Error|Exception): ")
Key = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Role, command and environment of a server."""


class Served:
    """A server that a row starts, as a group of processes that ends with the row."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_path: Path
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [word.replace(PORT, str(self.port)) for word in command]
        self.environment, self.log_path = {**os.environ, **environment}, log_path
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self, patience: float) -> Iterator[str]:
        """Start the server, yield its URL once it answers, and end it.

        Raises:
            UnavailableError: it cannot be started, ends, or does not answer within `patience`.
        """
        with self.log_path.open("wb") as output:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise UnavailableError(
                    f"{self.command[0]} cannot be started ({first_line(error)}): expected a server"
                ) from error
            try:
                self._wait(self.url, patience)
                yield self.url
            finally:
                self._end()

    def _wait(self, url: str, patience: float) -> None:
        opener, began = build_opener(ProxyHandler({})), time.monotonic()
        while time.monotonic() - began < patience:
            if self.process is not None and (code := self.process.poll()) is not None:
                raise UnavailableError(
                    f"the server ended with {code} before it answered ({self.log_path}"
                    f"{last_words(self.log_path)}): expected it to serve. Read its log"
                )
            with suppress(OSError, HTTPException):
                try:
                    opener.open(f"{url}/v1/models", timeout=PATIENCE).close()
                except HTTPError as error:
                    if error.code >= 500:  # it still loads
                        raise
                return
            time.sleep(PAUSE)
        raise UnavailableError(
            f"no answer of the server within {patience:g} s ({self.log_path}): expected one. "
            "Read its log, or raise `start`"
        )

    @property
    def ended(self) -> bool:
        """Return whether the process is gone."""
        return self.process is None or self.process.poll() is not None

    def say_end(self, error: SpsError) -> None:
        """Add to an error that the server is gone, if it is."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(GRACE)
            words = last_words(self.log_path)
            error.args = (f"the server ended with {code} in the middle{words}: {error}",)

    def _end(self) -> None:
        process = self.process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
                break


class Servers:
    """The servers of the row that runs; one with the same command and environment is kept."""

    def __init__(self) -> None:
        self._running: dict[Key, tuple[Served, ExitStack]] = {}

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_others(())

    def end_others(self, keys: Sequence[Key]) -> None:
        """End all servers but those of `keys`, and those that have died."""
        for key in [key for key, (served, _) in self._running.items() if served.ended]:
            self._running.pop(key)[1].close()
        for key in self._running.keys() - set(keys):
            self._running.pop(key)[1].close()

    def started(self, key: Key, log_path: Path, patience: float) -> Served:
        """Return the running server of a key, or start it.

        Raises:
            UnavailableError: it cannot be started, ends, or does not answer within `patience`.
        """
        if key in self._running:
            return self._running[key][0]
        _, command, environment = key
        served, stack = Served(command, dict(environment), log_path), ExitStack()
        stack.enter_context(served.running(patience))
        self._running[key] = served, stack
        return served


def last_words(path: Path) -> str:
    """Return what a server's log gives as the reason of its end, after a comma; else nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    errors = [at for at, line in enumerate(lines) if RAISED.match(line)]  # the first is the cause
    reason = " ".join(lines[errors[0] :][:2] if errors else lines[-1:])
    return f", {cut(reason, LONGEST_REASON)}" if reason else ""

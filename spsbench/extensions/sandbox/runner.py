"""Run one program in a level of isolation and give its verdict, whatever the program does.

If the system has no room for a process, the start is retried for a while. Processes that outlive
their parent, as bubblewrap's init process does, are adopted and reaped.
"""

import ctypes
import errno
import functools
import math
import os
import re
import resource
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from marshal import dumps
from secrets import token_hex
from typing import Any, TypeVar

from spsbench.extensions.sandbox.levels import (
    GRACE,
    MIB,
    BrokenError,
    BusyError,
    Level,
    ProgramLimits,
)
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

LONGEST = 30.0  # seconds; a program that takes all room ends by its own limit
FIRST, SLOWEST = 0.01, 1.0  # seconds between two attempts

T = TypeVar("T")


def retry_while_busy(start: Callable[[], T]) -> T:
    """Return `start()`; on BusyError wait and call again, and raise it after `LONGEST` seconds."""
    until, pause = time.monotonic() + LONGEST, FIRST
    while True:
        try:
            return start()
        except BusyError:
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, SLOWEST)


SET_CHILD_SUBREAPER = 36

_adopted: set[int] = set()
_lock = threading.Lock()


@functools.cache
def become_subreaper() -> None:
    """Make orphans among this process's descendants its children (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphan(pid: int) -> None:
    """Note an orphan by its id, to be reaped when it has ended, and reap those that have by now."""
    with _lock:
        _adopted.add(pid)
        _adopted.difference_update([orphan for orphan in _adopted if _gone(orphan, os.WNOHANG)])


def wait_for_orphans() -> None:
    """Block until all noted orphans have ended, and reap them."""
    with _lock:
        for pid in _adopted:
            _gone(pid, 0)
        _adopted.clear()


def _gone(pid: int, how: int) -> bool:
    """Reap a child, waiting for its end unless `how` is WNOHANG; return whether it has ended."""
    try:
        return os.waitpid(pid, how)[0] == pid
    except ChildProcessError:  # reaped by another thread
        return True


START = 30.0  # seconds for a sandbox to start, also on a busy machine
BACKSTOP = 2.0  # seconds after the runner's deadline when the kernel ends the program
DYING = 10.0  # seconds for killed processes to exit
WORDS = 4096  # maximum bytes of the jail's report
OPEN_FILES = 64
FEWEST_FILES = 20  # with which an interpreter starts and imports
TASKS = 64  # threads
FILE = 16  # MiB a file
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the whole environment; makes the order of sets reproducible
MARSHAL = 2  # the format that every Python reads
INIT = re.compile(rb'"child-pid": *+(\d++)')

ENDINGS = {
    "passed": ProgramVerdict.PASSED,
    "failed": ProgramVerdict.FAILED,
    "memory": ProgramVerdict.OUT_OF_MEMORY,
    "import": ProgramVerdict.IMPORT_MISSING,
}


def run_program(level: Level, source: str, limits: ProgramLimits) -> Outcome:
    """Run the program `source` in a fresh interpreter and wait until nothing of it is left.

    A program passes only if the jail wrote the secret mark after it: an exit status proves nothing.
    Raises BrokenError where the sandbox did not come up, so that nothing is known about the
    program, and BusyError where there is no room for another process, after retries.
    """

    def run() -> Outcome:
        if level.folder is not None:
            return _JailProcess(level, source, limits, level.folder).outcome()
        with tempfile.TemporaryDirectory(prefix="sps-", ignore_cleanup_errors=True) as folder:
            return _JailProcess(level, source, limits, folder).outcome()

    return retry_while_busy(run)


class _JailProcess:
    """The process of a jail, started here, its two pipes, and what came through them.

    stdout, the channel, has the jail's report alone; stderr what the program writes. BusyError,
    BrokenError: it cannot be started; `outcome` raises them of a jail that fails.
    """

    def __init__(self, level: Level, source: str, limits: ProgramLimits, folder: str) -> None:
        self._level, self._limits = level, limits
        self._mark = token_hex(16).encode()
        self._reply, self._written = b"", 0
        self._shown = b""  # beginning of the output, where a failing jail says why
        self._started: float | None = None
        begin = os.memfd_create("program")
        self._info, telling = os.pipe() if level.info else (-1, -1)
        informed = (level.info, str(telling)) if level.info else ()
        command = (*level.command, *informed, *level.inner)
        if level.info:
            become_subreaper()
        try:
            with open(begin, "wb", closefd=False) as file:
                file.write(dumps(self._request(source), MARSHAL))
            os.lseek(begin, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                command,
                stdin=begin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=ENVIRONMENT,
                bufsize=0,
                start_new_session=True,
                pass_fds=(telling,) if level.info else (),
            )
        except BlockingIOError as error:
            raise BusyError(f"{level.name}: {error.strerror}") from error
        except OSError as error:
            raise BrokenError(level.name, f"{command[0]}: {error.strerror}") from error
        finally:
            os.close(begin)
            if level.info:
                os.close(telling)
        self._pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe]
        self._channel, self._output = (pipe.fileno() for pipe in self._pipes)

    def _request(self, source: str) -> dict[str, Any]:
        """Return what the jail reads, for marshal: mark, source in bytes, limits, confinement."""
        limits = self._limits
        bounds = (
            (resource.RLIMIT_AS, limits.memory * MIB),
            (resource.RLIMIT_CPU, _processor(limits)),
            (resource.RLIMIT_FSIZE, FILE * MIB),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 1 << 16),
            (resource.RLIMIT_MSGQUEUE, 0),
        )
        return {
            "mark": self._mark,
            "source": source.encode("utf-8", "surrogatepass"),
            "bounds": tuple(map(_clamp_limit, bounds)),
            "tasks": TASKS,
            "processor": limits.timeout,
            "wall": limits.timeout + GRACE + BACKSTOP,
            "parent": None if self._level.own_pids else os.getpid(),
            **self._level.confinement,
        }

    def outcome(self) -> Outcome:
        """Watch the process to its end, kill what is left of it, and return the outcome.

        Raises BrokenError, or BusyError without room, if the jail has not started the program.
        """
        try:
            killed = self._watch()
        finally:
            with suppress(ProcessLookupError):  # the id is not reused before it is reaped
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._clear()
        if self._started is None:
            raise self._broken()
        return self._outcome_of(killed, time.monotonic() - self._started)

    def _watch(self) -> ProgramVerdict | None:
        """Read both pipes until the process ends; return None, or why it has to be killed.

        That is TIMED_OUT or OUTPUT_LIMIT. Until the program starts it has `START` seconds, then its
        limit and `GRACE`.
        """
        channel, output = self._channel, self._output
        ended = os.pidfd_open(self._process.pid)
        poll = select.poll()
        for handle in (channel, output, ended):
            poll.register(handle, select.POLLIN)
        until = time.monotonic() + START
        try:
            while True:
                left = until - time.monotonic()
                ready = dict(poll.poll(max(0, math.ceil(left * 1000)))) if left > 0 else {}
                if not ready:
                    return ProgramVerdict.TIMED_OUT
                before = self._started
                for handle in ready.keys() & {channel, output}:
                    if not self._read(handle):
                        poll.unregister(handle)
                if before is None and self._started is not None:
                    until = self._started + self._limits.timeout + GRACE
                if len(self._reply) > WORDS or self._written > self._limits.output * MIB:
                    return ProgramVerdict.OUTPUT_LIMIT
                if ended in ready:
                    os.set_blocking(channel, False)
                    with suppress(BlockingIOError):  # what the ended process left in the pipe
                        while len(self._reply) <= WORDS and self._read(channel):
                            pass
                    return None
        finally:
            os.close(ended)

    def _read(self, handle: int) -> bool:
        """Read from a pipe, if need be blocking; count output, note the start; False at the end."""
        content = os.read(handle, 1 << 16)
        if handle == self._channel:
            self._reply += content
            if self._started is None and self._mark + b" started\n" in self._reply:
                self._started = time.monotonic()
        else:
            self._written += len(content)
            self._shown += content[: WORDS - len(self._shown)]
        return bool(content)

    def _clear(self) -> None:
        """With `own_pids` wait, up to `DYING` s, for the channel's end; have init reaped, close."""
        if self._level.own_pids:
            _wait_for_end(self._channel)
        if self._level.info:
            init = INIT.search(os.read(self._info, WORDS))
            os.close(self._info)
            if init:
                reap_orphan(int(init[1]))
        for pipe in self._pipes:
            pipe.close()

    def _broken(self) -> BrokenError:
        """Return the error of a jail that did not start its program, by its last line of output.

        It is a BusyError where this line says that there is no room.
        """
        lines = self._shown.decode(errors="replace").strip().splitlines()
        lines = [line for line in lines if line and not line.startswith("Run '")] or ["no word"]
        if os.strerror(errno.EAGAIN) in lines[-1]:
            return BusyError(f"{self._level.name}: {lines[-1][:200]}")
        status = f"status {self._process.returncode}, {lines[-1][:200]}"
        return BrokenError(self._level.name, status)

    def _outcome_of(self, killed: ProgramVerdict | None, seconds: float) -> Outcome:
        """Return the outcome: by the jail's report, else by `killed`, else by the exit.

        `killed` is why the process was killed: too much output outweighs the report. `seconds` are
        since the start. Exit by SIGXCPU, or SIGKILL at the limit, is TIMED_OUT, else ENDED_EARLY.
        """
        if (lines := self._report()) is not None and killed is not ProgramVerdict.OUTPUT_LIMIT:
            word, _, detail = lines.partition(" ")
            return Outcome(ENDINGS.get(word, ProgramVerdict.ENDED_EARLY), detail, seconds)
        if killed is not None:
            return Outcome(killed, "", seconds, wall_only=killed is ProgramVerdict.TIMED_OUT)
        code = self._process.returncode
        number = -code if code < 0 else code - 128
        late = number == signal.SIGKILL and seconds > 0.98 * self._limits.timeout
        if number == signal.SIGXCPU or late:
            return Outcome(ProgramVerdict.TIMED_OUT, "", seconds)
        how = f"signal {number}" if 0 < number < signal.NSIG else f"exit status {code}"
        return Outcome(ProgramVerdict.ENDED_EARLY, how, seconds)

    def _report(self) -> str | None:
        """Return the jail's last line without its mark; None: it wrote none after `started`."""
        lines = [line for line in self._reply.splitlines() if line.startswith(self._mark)]
        if len(lines) < 2:
            return None
        return lines[-1][len(self._mark) + 1 :].decode(errors="replace")


def _clamp_limit(bound: tuple[int, int]) -> tuple[int, int]:
    """Return a kind of limit and its value, no higher than this process may set it."""
    kind, value = bound
    most = resource.getrlimit(kind)[1]
    return kind, value if most == resource.RLIM_INFINITY else min(value, most)


def too_low(limits: ProgramLimits) -> str | None:
    """Return a sentence on the first hard limit of this process below `limits`; None: none is."""
    for kind, flag, needed, unit in (
        (resource.RLIMIT_AS, "v", limits.memory * MIB, 1024),
        (resource.RLIMIT_CPU, "t", _processor(limits), 1),
        (resource.RLIMIT_NOFILE, "n", FEWEST_FILES, 1),
    ):
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY and most < needed:
            least = needed // unit
            return f"ulimit -H{flag} is {most // unit} in this shell: expected {least} or more"
    return None


def _processor(limits: ProgramLimits) -> int:
    """Return the whole seconds of processor time after which the kernel ends a program."""
    return math.ceil(limits.timeout) + 1  # the exact limit is a timer


def _wait_for_end(channel: int) -> None:
    """Block until no process holds the other end, killed ones included, or `DYING` seconds."""
    until = time.monotonic() + DYING
    os.set_blocking(channel, True)
    while select.select([channel], [], [], max(0.0, until - time.monotonic()))[0]:
        if not os.read(channel, 1 << 16):
            return

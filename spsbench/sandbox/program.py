"""One program in a fresh interpreter at one level: started, bounded, killed, judged."""

import os
import secrets
import selectors
import signal
import subprocess
import time
from typing import NamedTuple

from spsbench.sandbox.interpreter import ENVIRONMENT
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.verdict import CPU, WALL, Outcome, SandboxError, Verdict

CHUNK = 1 << 16
KEPT = 1 << 16  # bytes of output that an outcome keeps


class Ended(NamedTuple):
    """The end of the process, seen from outside."""

    status: int | None  # as `Popen.returncode`; None = killed at a limit
    limit: str  # which one, else ""
    output: bytes
    seconds: float


def run(program: str, level: Level, limits: Limits) -> Outcome:
    """Run `program` to its end or to a limit. It passes if it comes to its end without an error.

    Raises:
        SandboxError: the interpreter could not be started or locked in; the program was not run.
    """
    mark, ready = secrets.token_hex(16), secrets.token_hex(16)
    bounds = {"memory": limits.memory, "cpu": limits.cpu, "file": limits.file}
    with level.start() as start:
        order = {"program": program, "mark": mark, "ready": ready, "limits": bounds, **start.order}
        ended = converse(start.command, start.folder, ascii(order).encode(), limits)
    before, told, rest = ended.output.partition(f"{ready}\n".encode())
    if not told and not ended.limit:
        last = before.decode("ascii", "replace").strip().splitlines() or ["it said nothing"]
        raise SandboxError(
            f"the sandbox {level.name} did not start ({last[-1][:200]}): expected an interpreter "
            "locked in. Nothing was run in it; see `sps doctor`"
        )
    verdict, detail = judged(ended, rest, mark)
    return Outcome(verdict, detail, ended.seconds, rest[:KEPT])


def judged(ended: Ended, output: bytes, mark: str) -> tuple[Verdict, str]:
    """What the runner told, if it could; else what the end of its process shows."""
    if ended.limit == WALL:
        return Verdict.TIMED_OUT, WALL
    if ended.limit:
        return Verdict.OUTPUT_LIMIT, ended.limit
    told = output.rpartition(f"\n{mark} ".encode())
    if told[1]:
        return _told(told[2])
    signalled = _signal(ended.status or 0)
    if signalled in (signal.SIGXCPU, signal.SIGKILL):
        return Verdict.TIMED_OUT, CPU
    detail = f"signal {signalled}" if signalled else f"exit status {ended.status}"
    return Verdict.ENDED_EARLY, detail


def _told(line: bytes) -> tuple[Verdict, str]:
    verdict, _, detail = line.decode("ascii", "replace").rstrip("\n").partition("\t")
    try:
        return Verdict(verdict), detail
    except ValueError:
        return Verdict.ENDED_EARLY, "a broken last line"


def _signal(status: int) -> int:
    """The signal that ended a process, or the one that ended its child, as shells report it."""
    return -status if status < 0 else status - 128 if 128 < status <= 192 else 0


def converse(command: list[str], folder: str, given: bytes, limits: Limits) -> Ended:
    """Start `command`, give it its input, read what it prints, and leave nothing of it behind.

    Raises:
        SandboxError: it cannot be started.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(
            f"{command[0]} cannot be started ({error.strerror}): expected the program of the "
            "sandbox. Install it again"
        ) from error
    try:
        limit, output = _exchange(process, given, began + limits.wall, limits.output)
        status = None if limit else process.wait(max(0.1, began + limits.wall - time.monotonic()))
    except subprocess.TimeoutExpired:  # it closed its output and went on
        limit, status = WALL, None
    finally:
        _end(process)
    return Ended(status, limit, output, time.monotonic() - began)


def _exchange(
    process: "subprocess.Popen[bytes]", given: bytes, deadline: float, most: int
) -> tuple[str, bytes]:
    """Write all of `given` while reading; the limit that was hit, and what was read."""
    source, sink = process.stdin, process.stdout
    if source is None or sink is None:
        raise ValueError("the process has no pipes")
    output = bytearray()
    os.set_blocking(source.fileno(), False)
    rest = memoryview(given)
    with selectors.DefaultSelector() as ready:
        ready.register(sink, selectors.EVENT_READ)
        ready.register(source, selectors.EVENT_WRITE)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return WALL, bytes(output)
            for key, _ in ready.select(left):
                if key.fileobj is sink:
                    chunk = os.read(sink.fileno(), CHUNK)
                    if not chunk:
                        return "", bytes(output)
                    output += chunk
                    if len(output) > most:
                        return f"more than {most} bytes", bytes(output)
                    continue
                try:
                    rest = rest[os.write(source.fileno(), rest[:CHUNK]) :]
                except BrokenPipeError:
                    rest = rest[:0]
                if not rest:
                    ready.unregister(source)
                    source.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process with its group, wait for it, close its pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()

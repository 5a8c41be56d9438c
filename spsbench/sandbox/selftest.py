"""Does a level hold, here and now? The probes are run in it, against targets that are there."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.sandbox import orphans
from spsbench.sandbox.interpreter import machine
from spsbench.sandbox.levels import WORK, BrokenError, Level
from spsbench.sandbox.probes import HELPERS, NUMBERS, PROBES
from spsbench.sandbox.runner import run
from spsbench.sandbox.verdict import ProgramLimits, ProgramVerdict

CONTENT = "canary"
LIMITS = ProgramLimits(timeout=20.0)

# What must work, or every program would fail for the sandbox's sake.
CONTROL = """
import asyncio, collections, datetime, hashlib, heapq, itertools, math, random, re, sys, threading
if version and sys.version != version:
    raise RuntimeError(f"another Python inside: {sys.version}")
thread = threading.Thread(target=hashlib.md5, args=(b"",))
thread.start()
thread.join()
asyncio.run(asyncio.sleep(0))
open("/dev/null", "w").close()
if scratch:
    open(scratch, "x").close()
"""
TRY = """
opened = []
for name, probe in probes.items():
    try:
        exec(probe, dict(given))
    except BaseException:
        continue
    opened.append(name)
if opened:
    raise RuntimeError(", ".join(opened))
"""


class Tested(NamedTuple):
    """What a self-test found."""

    holds: bool
    words: str  # why not; or how many probes were refused


class Host(NamedTuple):
    """Targets outside, and what tells that one was reached."""

    names: dict[str, Any]
    reached: list[str]  # filled when the context ends


def test(level: Level) -> Tested:
    """Run all probes in `level`: it holds if every one is refused."""
    try:
        with host() as targets:
            outcome = run(level, program(level, targets.names), LIMITS)
    except BrokenError as error:
        return Tested(False, error.reason)
    except OSError as error:
        return Tested(False, f"the self-test cannot be made ({error})")
    finally:
        orphans.wait()
    if outcome.verdict is not ProgramVerdict.PASSED:
        return Tested(False, f"the self-test {outcome}")
    if targets.reached:
        return Tested(False, f"reached from inside: {', '.join(targets.reached)}")
    return Tested(True, f"{len(PROBES)} probes refused")


def starts(level: Level) -> str:
    """Why a program that needs only what must work does not pass; else nothing.

    The jail's own doors, which must be shut, are among the reasons.
    """
    try:
        outcome = run(level, control(level), LIMITS)
    except BrokenError as error:
        return error.reason
    finally:
        orphans.wait()
    return "" if outcome.verdict is ProgramVerdict.PASSED else f"a correct program {outcome}"


def version(level: Level) -> str:
    """sys.version inside."""
    outcome = run(level, "import sys\nraise RuntimeError(sys.version)", LIMITS)
    return outcome.detail.removeprefix("RuntimeError: ")


def program(level: Level, names: dict[str, Any]) -> str:
    """The self-test as a program."""
    given = {**names, "numbers": NUMBERS[machine()]}
    lines = [control(level), f"given = {given!r}", f"probes = {PROBES!r}"]
    return "\n".join([*lines, f"exec({HELPERS!r}, given)", TRY])


def control(level: Level) -> str:
    """The part of the self-test that must be able to do what it does."""
    rules = (level.confinement["landlock"] or {"rules": ()})["rules"]
    writable = any(path == os.fsencode(WORK) for path, _ in rules)
    scratch = f"{WORK}/new" if writable else ""
    return f"version = {level.python!r}\nscratch = {scratch!r}\n{CONTROL}"


@contextmanager
def host() -> Iterator[Host]:
    """Make the targets, and look afterwards what has become of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sps-selftest-")))
        folder.chmod(0o777)  # an ordinary user inside is to be stopped by more than its mode
        for name in ("canary", "spare"):
            (folder / name).write_text(CONTENT, encoding="ascii")
            (folder / name).chmod(0o666)
        listening = {
            "TCP": stack.enter_context(_listening(socket.AF_INET, ("127.0.0.1", 0))),
            "a socket file": stack.enter_context(_listening(socket.AF_UNIX, str(folder / "s"))),
        }
        abstract = f"sps-{folder.name}"
        if sys.platform == "linux":
            listening["a socket's name"] = stack.enter_context(
                _listening(socket.AF_UNIX, f"\0{abstract}")
            )
        names = {
            "folder": str(folder),
            "canary": str(folder / "canary"),
            "port": listening["TCP"].getsockname()[1],
            "socket_path": str(folder / "s"),
            "abstract": abstract,
            "pid": os.getpid(),
        }
        before = _state(folder)
        found = Host(names, [])
        yield found
        if _state(folder) != before:
            found.reached.append("files")
        found.reached.extend(name for name, one in listening.items() if _called(one))


def _listening(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.bind(address)
    made.listen()
    made.setblocking(False)
    return made


def _called(listening: socket.socket) -> bool:
    with suppress(BlockingIOError):
        listening.accept()[0].close()
        return True
    return False


def _state(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in folder.iterdir():
        kept = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path.name] = (kept.st_mode, kept.st_uid, kept.st_mtime_ns, kept.st_nlink, content)
    return found

"""The live self-test: whether a level really holds on this machine, now.

All probes of inside/probes.py are run in it as one program, against canaries made for it. A level
holds if none of them gets through. The answer is kept in a private file for as long as the machine
is up and nothing that it rests on changes.
"""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.sandbox.interpreter import INSIDE, python
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.program import run
from spsbench.sandbox.verdict import SandboxError, Verdict
from spsbench.store.atomic import replace_file
from spsbench.store.lock import boot_id

PROBES = INSIDE / "probes.py"
LIMITS = Limits(seconds=10.0)
OF_IMAGE = ("docker", "podman")  # their interpreter is not ours


class Answer(NamedTuple):
    """Whether a level holds, and if not, why."""

    holds: bool
    reason: str


def holds(level: Level) -> Answer:
    """The kept answer, or a new test."""
    if reason := level.missing():
        return Answer(False, reason)
    key, path = identity(level), cache()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_uid == os.getuid() and not path.stat().st_mode & 0o077:
            kept = json.loads(path.read_bytes())[key]
            return Answer(bool(kept["holds"]), str(kept["reason"]))
    answer = test(level)
    with contextlib.suppress(OSError, SandboxError):
        keep(path, key, answer)
    return answer


def test(level: Level) -> Answer:
    """Run the probes at `level`."""
    with canaries() as given:
        program = f"GIVEN = {given!r}\n{PROBES.read_text(encoding='utf-8')}"
        try:
            outcome = run(program, level, LIMITS)
        except SandboxError as error:
            return Answer(False, str(error).partition(":")[0])
    if outcome.verdict is not Verdict.PASSED:
        return Answer(False, f"the self-test ended with: {outcome.verdict} ({outcome.detail})")
    told = json.loads(outcome.output.strip().splitlines()[0])
    if told["open"]:
        return Answer(False, f"{len(told['open'])} ways out, {told['open'][0]} among them")
    if level.name not in OF_IMAGE and told["version"] != sys.version:
        return Answer(False, f"another Python in it: {told['version'].split()[0]}")
    return Answer(True, f"{told['tried']} ways out tried, all closed")


@contextlib.contextmanager
def canaries() -> Iterator[dict[str, Any]]:
    """Things outside that a program must not reach, and where they are."""
    secret = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="sps-canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
    ):
        os.chmod(folder, 0o777)  # so that nothing but the sandbox keeps another user out
        canary = Path(folder, "canary")
        canary.write_text("alive")
        canary.chmod(0o666)
        Path(folder, "spare").write_text("alive")
        path = os.path.join(folder, "socket")
        stream.bind(path)
        stream.listen()
        datagram.bind(f"{path}.datagram")
        for name in (path, f"{path}.datagram"):
            os.chmod(name, 0o777)
        yield {
            "canary": str(canary),
            "folder": folder,
            "parent": os.getpid(),
            "tcp": tcp.getsockname()[1],
            "unix": path,
            "secret": secret,
        }


def identity(level: Level) -> str:
    """Hash of all that the answer rests on: boot, user, namespaces, programs and our own code."""
    state = hashlib.sha256(f"{level!r} {boot_id()} {os.getuid()} {sys.version}".encode())
    for name in sorted(os.listdir("/proc/self/ns")):
        state.update(os.readlink(f"/proc/self/ns/{name}").encode())
    own = sorted(path for path in INSIDE.parent.rglob("*.py"))
    for file in (*own, Path(python()), *map(Path, level.files())):
        with file.open("rb") as content:
            state.update(hashlib.file_digest(content, "sha256").digest())
    return f"{level.name} {state.hexdigest()}"


def cache() -> Path:
    """The file of the answers."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home, "spsbench", "sandbox.json")


def keep(path: Path, key: str, answer: Answer) -> None:
    """Remember an answer, for this user alone; older ones of the level are dropped."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        known = {}
    level = key.split()[0]
    kept = {name: value for name, value in known.items() if name.split()[0] != level}
    replace_file(path, json.dumps(kept | {key: answer._asdict()}).encode())
    path.chmod(0o600)

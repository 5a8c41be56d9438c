"""The findings of self-tests, kept for as long as nothing they depend on has changed.

Filters around this process can be counted and not told apart: what they may pretend, the jail's
doors find out at every start.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from spsbench.hardware.cache_home import beside, cache_home
from spsbench.sandbox import bubblewrap, landlock
from spsbench.sandbox.interpreter import digest, interpreter

NAMESPACES = ("user", "mnt", "pid", "net", "ipc")
STATUS = ("NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "CapEff:", "CapBnd:")


def place() -> Path:
    """The file: this user's alone."""
    return cache_home() / "sandbox.json"


def situation() -> str:
    """A digest of all that a finding depends on: boot, user, outer sandbox, programs, this code."""
    known = [
        _text("/proc/sys/kernel/random/boot_id"),
        os.getresuid(),
        os.getgroups(),
        [_link(f"/proc/self/ns/{name}") for name in NAMESPACES],
        [line for line in _text("/proc/self/status").splitlines() if line.startswith(STATUS)],
        _text("/proc/self/attr/current"),
        landlock.abi(),
        os.uname().release,
        [digest(path) for path in (bubblewrap.find(), interpreter().executable) if path],
        [digest(str(path)) for path in sorted(Path(__file__).parent.glob("*.py"))],
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def load(key: str) -> dict[str, Any]:
    """The findings under `key`; empty where there are none, or the file is not ours alone."""
    try:
        handle = os.open(place(), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(handle)
            if state.st_uid != os.geteuid() or state.st_mode & 0o077:
                return {}
            kept = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    found = kept.get(key) if isinstance(kept, dict) else None
    return found if isinstance(found, dict) else {}


def save(key: str, findings: dict[str, Any]) -> None:
    """Keep the findings of `key` alone. A cache that cannot be written is none, and no error."""
    path = place()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with beside(path) as draft:
            draft.write_text(json.dumps({key: findings}), encoding="ascii")
    except OSError:
        return


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip("\0\n")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

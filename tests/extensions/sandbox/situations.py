"""The hosts that a sandbox must hold on: users, and what is missing there."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spsbench.extensions.sandbox import confinement
from tests.extensions.sandbox import mask, trial

ROOT = Path(__file__).parents[3]
USER = 4242
PATH = os.environ.get("PATH", "/usr/bin:/bin")

# name -> what comes before the interpreter; PATH; the level that must be found there
OUTER = ("bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/")
HOSTS: dict[str, tuple[tuple[str, ...], str, str | None]] = {
    "bare": ((), PATH, "bwrap"),
    "no bwrap": ((), "/nonexistent", "landlock"),
    "no user namespaces": (OUTER, PATH, "landlock"),
    "no Landlock": (("python", mask.__file__), PATH, None),
    "no Landlock, no bwrap": (("python", mask.__file__), "/nonexistent", None),
}
USERS = ("root", "user")


@functools.cache
def python_for(user: str) -> str:
    """An interpreter that the user can run; skips the test where there is none."""
    if user == "root":
        return sys.executable
    for candidate in (sys.executable, "/usr/bin/python3", shutil.which("python3")):
        command = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        # setpriv can start one out of root's home; it then finds another one's library
        check = (
            "import sys; open(sys._base_executable).close(); sys.exit(sys.version_info < (3, 11))"
        )
        if candidate and _works([*command, candidate, "-c", check]):
            return candidate
    pytest.skip("no Python 3.11 that an ordinary user could run")


def need(host: str, user: str) -> None:
    """Skip what this machine cannot show, and say why."""
    if os.geteuid() != 0 and user == "root":
        pytest.skip("needs root")
    if os.geteuid() == 0 and user == "user" and not shutil.which("setpriv"):
        pytest.skip("needs setpriv of util-linux")
    if confinement.landlock_abi() < confinement.FULL:
        pytest.skip(f"needs Landlock ABI {confinement.FULL}")
    if host in ("bare", "no user namespaces") and not namespaces():
        pytest.skip("needs bubblewrap and user namespaces")


@functools.cache
def namespaces() -> bool:
    """Whether bwrap works here."""
    return _works(["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"])


def run_trial(
    host: str,
    user: str,
    programs: Mapping[str, str],
    tmp: Path,
    *,
    timeout: float = 1.0,
    level: str = "",
    targets: bool = True,
    behind: tuple[str, ...] = (),
    readable: bool = False,
) -> dict[str, Any]:
    """What `trial` saw as `user` on `host`. Its folder for temporary files must end up empty.

    `behind`: words of a command that starts it, "python" being the interpreter; `readable`: by an
    interpreter that others can run, so that root becomes `nobody`.
    """
    need(host, user)
    python = python_for("user" if readable else user)
    before, path, _ = HOSTS[host]
    command = [python if word == "python" else word for word in (*before, *behind)]
    command = [shutil.which(command[0]) or command[0], *command[1:]] if command else []
    if user == "user" and os.geteuid() == 0:
        own = [shutil.which("setpriv"), f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        command = [*own, *command]
    temporary = tmp / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    asked = {"programs": dict(programs), "timeout": timeout, "level": level, "targets": targets}
    done = subprocess.run(
        [*command, python, "-B", "-W", "error", trial.__file__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(ROOT), "PATH": path, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == [], "files were left behind"
    temporary.rmdir()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


needs_landlock = pytest.mark.skipif(
    confinement.landlock_abi() < confinement.FULL, reason=f"needs Landlock ABI {confinement.FULL}"
)


def replaced(level, **confinement):
    return replace(level, confinement={**level.confinement, **confinement})

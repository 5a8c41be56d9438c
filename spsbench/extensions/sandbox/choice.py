"""Choose the strongest level whose self-test holds on this machine, or refuse.

Findings of self-tests are cached until something that they depend on changes. Seccomp filters
around this process can be counted but not identified; the jail's checks at every start detect a
filter that answers calls without executing them.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spsbench.extensions.sandbox import confinement, isolation, selftest
from spsbench.extensions.sandbox.levels import (
    Level,
    ProgramLimits,
    SandboxError,
    UnavailableError,
    digest,
    interpreter,
)
from spsbench.extensions.sandbox.runner import too_low
from spsbench.hardware.files import beside, cache_home
from spsbench.messages import announce_if_slow

NAMESPACES = ("user", "mnt", "pid", "net", "ipc")
STATUS = ("NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "CapEff:", "CapBnd:")


def findings_path() -> Path:
    """Return the file of findings, which is private to the user."""
    return cache_home() / "sandbox.json"


def situation_digest() -> str:
    """Return a digest of all that a finding depends on: boot, user, outer sandbox, code."""
    conditions = [
        _text("/proc/sys/kernel/random/boot_id"),
        os.getresuid(),
        os.getgroups(),
        [_link(f"/proc/self/ns/{name}") for name in NAMESPACES],
        [line for line in _text("/proc/self/status").splitlines() if line.startswith(STATUS)],
        _text("/proc/self/attr/current"),
        confinement.landlock_abi(),
        os.uname().release,
        [digest(path) for path in (isolation.find_bubblewrap(), interpreter().executable) if path],
        [digest(str(path)) for path in sorted(Path(__file__).parent.glob("*.py"))],
    ]
    return hashlib.sha256(json.dumps(conditions).encode()).hexdigest()


def load_findings(key: str) -> dict[str, Any]:
    """Return the findings under `key`; none if the file is missing or open to other users."""
    try:
        handle = os.open(findings_path(), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(handle)
            if state.st_uid != os.geteuid() or state.st_mode & 0o077:
                return {}
            cache = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    findings = cache.get(key) if isinstance(cache, dict) else None
    return findings if isinstance(findings, dict) else {}


def save_findings(key: str, findings: dict[str, Any]) -> None:
    """Write the findings of `key` alone. A cache that cannot be written is no error."""
    path = findings_path()
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


Name = Literal["auto", "bwrap", "landlock", "none"]
UNDERSTOOD = "--i-understand-this-runs-untrusted-code"

Make = Callable[[ProgramLimits], Level]
AUTOMATIC: dict[str, Make] = {  # strongest first
    "bwrap": lambda limits: isolation.bubblewrap_level(interpreter(), limits),
    "landlock": lambda limits: isolation.landlock_level(interpreter(), limits),
}


class LevelFinding(NamedTuple):
    """Return whether a level holds, and the reason."""

    name: str
    holds: bool
    words: str  # reason
    level: Level | None = None
    python: str = ""  # release of the Python that runs the programs


def choose(name: Name, limits: ProgramLimits, *, understood: bool = False) -> LevelFinding:
    """Return the level asked for, or with `auto` the strongest, once its self-test has held.

    Raises:
        SandboxError: no level holds; says in one line what to install.
    """
    if reason := too_low(limits):
        raise SandboxError(
            f"programs cannot have what they are given ({reason}). Raise it, by `ulimit` in the "
            "shell that may, or lower `memory` or `timeout`"
        )
    if name == "none":
        return _unconfined(limits, understood)
    findings = survey(limits) if name == "auto" else survey(limits, (name,))
    for finding in findings:
        if finding.holds:
            return finding
    if name == "auto":
        raise SandboxError(refusal(findings))
    raise SandboxError(
        f"`sandbox` {name} does not hold here ({findings[0].words}): expected it to. "
        "Leave `sandbox` out for the strongest level that does"
    )


def survey(limits: ProgramLimits, names: tuple[str, ...] = tuple(AUTOMATIC)) -> list[LevelFinding]:
    """Try the levels in order until one holds; return their findings, which are cached."""
    if sys.platform != "linux":
        return [
            LevelFinding(name, False, f"needs Linux, not {platform.system()}") for name in names
        ]
    key = situation_digest()
    cache = load_findings(key)
    before = dict(cache)
    findings = []
    for name in names:
        findings.append(_try(name, AUTOMATIC[name], limits, cache))
        if findings[-1].holds:
            break
    if cache != before:
        save_findings(key, cache)
    return findings


def examine() -> tuple[list[tuple[str, bool, str]], list[tuple[str, str]]]:
    """Return for `sps doctor` each level with whether it holds and the reason, and the rows."""
    findings = survey(ProgramLimits())
    rows = [
        ("sandbox", f"{name}: {'holds' if holds else 'does not hold'}, {words}")
        for name, holds, words, *_ in findings
    ]
    if not any(finding.holds for finding in findings):
        rows.append(("sandbox", "none: `sps score` refuses. docs/sandbox.md says what to install"))
    return [(finding.name, finding.holds, finding.words) for finding in findings], rows


def refusal(findings: list[LevelFinding]) -> str:
    """Return the message for levels none of which holds."""
    tried = "; ".join(f"{finding.name}: {finding.words}" for finding in findings)
    return (
        f"no sandbox on this machine can hold model-written code ({tried}): expected one that "
        "does. Install bubblewrap (and allow user namespaces), use Linux 6.7 or newer with "
        f"Landlock, or pass `sandbox` none {UNDERSTOOD}"
    )


def _try(name: str, make: Make, limits: ProgramLimits, cache: dict[str, Any]) -> LevelFinding:
    if reason := too_low(limits):
        return LevelFinding(name, False, reason)
    try:
        level = make(limits)
    except UnavailableError as error:
        return LevelFinding(name, False, str(error))
    with announce_if_slow(f"testing the sandbox {name}"):
        if words_before := cache.pop(name, ""):
            reason = selftest.starts(level)
            holds, words = not reason, reason or str(words_before)
        else:
            holds, words = selftest.test(level)
    if holds:  # refusals are not cached, since the cause may disappear
        cache[name] = words
    python = level.python or (selftest.version(level) if holds else "")
    return LevelFinding(name, holds, words, level, python.partition(" ")[0])


def _unconfined(limits: ProgramLimits, understood: bool) -> LevelFinding:
    if not understood:
        raise SandboxError(
            f"`sandbox` none runs model-written code with your rights (without {UNDERSTOOD}): "
            "expected both options or neither. Leave `sandbox` out for the strongest level here"
        )
    level = isolation.unconfined_level(interpreter(), limits)
    return LevelFinding("none", True, "nothing is isolated", level, level.python.partition(" ")[0])

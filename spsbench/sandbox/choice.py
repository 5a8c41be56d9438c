"""Which level a machine can offer: the strongest whose self-test holds, or none and a refusal."""

import platform
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from spsbench.messages import announce_if_slow
from spsbench.sandbox import bubblewrap, cache, container, plain, selftest
from spsbench.sandbox.interpreter import interpreter
from spsbench.sandbox.levels import Level, SandboxError, UnavailableError
from spsbench.sandbox.verdict import ProgramLimits

Name = Literal["auto", "bwrap", "landlock", "docker", "podman", "none"]
UNDERSTOOD = "--i-understand-this-runs-untrusted-code"

Make = Callable[[ProgramLimits], Level]
AUTOMATIC: dict[str, Make] = {  # the strongest first
    "bwrap": lambda limits: bubblewrap.level(interpreter(), limits),
    "landlock": lambda limits: plain.jailed(interpreter(), limits),
}


class LevelFinding(NamedTuple):
    """What became of the attempt to have a level."""

    name: str
    holds: bool
    words: str  # why, or why not
    level: Level | None = None
    python: str = ""  # the release that runs the programs


def choose(
    name: Name, limits: ProgramLimits, *, understood: bool = False, image: str = ""
) -> LevelFinding:
    """The level asked for, or with `auto` the strongest, once its self-test has held.

    Raises:
        SandboxError: none, in one line that says what to install.
    """
    if name == "none":
        return _unconfined(limits, understood)
    if name == "auto":
        findings = survey(limits)
    elif name in container.ENGINES:
        findings = [_try(name, lambda some: container.level(name, image, some), limits, {})]
    else:
        findings = survey(limits, (name,))
    for finding in findings:
        if finding.holds:
            return finding
    if name == "auto":
        raise SandboxError(refusal(findings))
    raise SandboxError(
        f"--sandbox {name} does not hold here ({findings[0].words}): expected it to. "
        "Leave --sandbox out for the strongest level that does"
    )


def survey(limits: ProgramLimits, names: tuple[str, ...] = tuple(AUTOMATIC)) -> list[LevelFinding]:
    """Try the levels in turn until one holds; what was found is kept for the next time."""
    if sys.platform != "linux":
        return [
            LevelFinding(name, False, f"needs Linux, not {platform.system()}") for name in names
        ]
    key = cache.situation()
    known = cache.load(key)
    before = dict(known)
    findings = []
    for name in names:
        findings.append(_try(name, AUTOMATIC[name], limits, known))
        if findings[-1].holds:
            break
    if known != before:
        cache.save(key, known)
    return findings


def refusal(findings: list[LevelFinding]) -> str:
    """The line for levels none of which holds."""
    tried = "; ".join(f"{finding.name}: {finding.words}" for finding in findings)
    return (
        f"no sandbox on this machine can hold model-written code ({tried}): expected one that "
        "does. Install bubblewrap (and allow user namespaces), use Linux 6.7 or newer with "
        f"Landlock, or pass --sandbox none {UNDERSTOOD}"
    )


def _try(name: str, make: Make, limits: ProgramLimits, known: dict[str, Any]) -> LevelFinding:
    try:
        level = make(limits)
    except UnavailableError as error:
        return LevelFinding(name, False, str(error))
    with announce_if_slow(f"testing the sandbox {name}"):
        if kept := known.pop(name, ""):
            reason = selftest.starts(level)
            holds, words = not reason, reason or str(kept)
        else:
            holds, words = selftest.test(level)
    if holds:  # a refusal is found anew each time: what caused it may have gone
        known[name] = words
    python = level.python or (selftest.version(level) if holds else "")
    return LevelFinding(name, holds, words, level, python.partition(" ")[0])


def _unconfined(limits: ProgramLimits, understood: bool) -> LevelFinding:
    if not understood:
        raise SandboxError(
            f"--sandbox none runs model-written code with your rights (without {UNDERSTOOD}): "
            "expected both options or neither. Leave --sandbox out for the strongest level here"
        )
    level = plain.unconfined(interpreter(), limits)
    return LevelFinding("none", True, "nothing is isolated", level, level.python.partition(" ")[0])

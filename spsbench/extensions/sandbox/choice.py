"""Choose the strongest level that starts on this machine, or refuse.

A level is trusted for what the jail checks at every start (`jail.py`): what became of its own
steps, and that the nine calls of `confinement.startup_checks` are refused.
"""

import os
import platform
import sys
from collections.abc import Callable
from typing import NamedTuple

from spsbench.extensions.sandbox import levels, runner
from spsbench.extensions.sandbox.levels import (
    WORK,
    BrokenError,
    Level,
    LevelUnavailableError,
    ProgramLimits,
    SandboxError,
)
from spsbench.messages import announce_if_slow
from spsbench.tasks.verdicts import ProgramVerdict

UNDERSTOOD = "--i-understand-this-runs-untrusted-code"

AUTOMATIC: dict[str, Callable[[ProgramLimits], Level]] = {  # strongest first
    "bwrap": levels.bubblewrap_level,
    "landlock": levels.landlock_level,
}


class LevelFinding(NamedTuple):
    """Whether a level holds, and what it protects, or why it does not."""

    name: str
    holds: bool
    words: str  # what it protects, or why it does not hold
    level: Level | None = None  # None: it does not hold


def choose_level(name: str, limits: ProgramLimits, *, understood: bool = False) -> Level:
    """Return the level `name`, or the strongest for auto, once it has run a program.

    `name` is auto, a key of `AUTOMATIC`, or none; `understood`: the user accepts that none, which
    is not started, isolates nothing. Raises SandboxError, which says what to do, where no such
    level holds, for none without `understood`, and for `limits` above this process's own.
    """
    if reason := runner.too_low(limits):
        raise SandboxError(
            f"programs cannot have what they are given ({reason}). Raise it, by ulimit in the "
            "shell that may, or lower `memory` or `timeout`"
        )
    if name == "none":
        if understood:
            return levels.unconfined_level(limits)
        raise SandboxError(
            f"`sandbox` none runs model-written code with your rights (without {UNDERSTOOD}): "
            "expected both options or neither. Leave `sandbox` out for the strongest level here"
        )
    findings = survey(limits) if name == "auto" else survey(limits, (name,))
    for finding in findings:
        if finding.level is not None:
            return finding.level
    if name == "auto":
        tried = "; ".join(f"{finding.name}: {finding.words}" for finding in findings)
        raise SandboxError(
            f"no sandbox on this machine can hold model-written code ({tried}): expected one that "
            "does. Install bubblewrap (and allow user namespaces), use Linux 6.7 or newer with "
            f"Landlock, or pass `sandbox` none {UNDERSTOOD}"
        )
    raise SandboxError(
        f"`sandbox` {name} does not hold here ({findings[0].words}): expected it to. "
        "Leave `sandbox` out for the strongest level that does"
    )


def survey(limits: ProgramLimits, names: tuple[str, ...] = tuple(AUTOMATIC)) -> list[LevelFinding]:
    """Start the levels `names` in order until one holds; return the findings, that one last."""
    findings: list[LevelFinding] = []
    for name in names:
        findings.append(_try(name, limits))
        if findings[-1].holds:
            break
    return findings


def examine_levels() -> tuple[list[tuple[str, bool, str]], list[tuple[str, str]]]:
    """Return (name, holds, words) of each level up to the first that holds, and doctor's rows."""
    findings = survey(ProgramLimits())
    rows = [
        ("sandbox", f"{name}: {'holds' if holds else 'does not hold'}, {words}")
        for name, holds, words, *_ in findings
    ]
    if not any(finding.holds for finding in findings):
        advice = "docs/howto/programs.md says what to install"
        rows.append(("sandbox", f"none: `sps score` refuses. {advice}"))
    return [(finding.name, finding.holds, finding.words) for finding in findings], rows


def _try(name: str, limits: ProgramLimits) -> LevelFinding:
    """Run a correct program in level `name`; return it and what it protects, or why it fails."""
    if sys.platform != "linux":
        return LevelFinding(name, False, f"needs Linux, not {platform.system()}")
    if reason := runner.too_low(limits):
        return LevelFinding(name, False, reason)
    try:
        level = AUTOMATIC[name](limits)
    except LevelUnavailableError as error:
        return LevelFinding(name, False, str(error))
    with announce_if_slow(f"starting the sandbox {name}"):
        reason = why_not(level)
    if reason:
        return LevelFinding(name, False, reason)
    return LevelFinding(name, True, level.protection, level)


CONTROL = """
import asyncio, collections, datetime, hashlib, heapq, itertools, math, random, re, sys, threading
if sys.version != version:
    raise RuntimeError(f"another Python inside: {sys.version}")
thread = threading.Thread(target=hashlib.md5, args=(b"",))
thread.start()
thread.join()
asyncio.run(asyncio.sleep(0))
open("/dev/null", "w").close()
if scratch:
    open(scratch, "x").close()
"""
"""A correct program: where it fails, every program would, because of the sandbox."""


def why_not(level: Level) -> str:
    """Run a correct program in `level`; return why it does not pass, or empty if it does.

    The jail's own checks are among the reasons. Waits for processes that are left.
    """
    rules = (level.confinement["landlock"] or {"rules": ()})["rules"]
    writable = any(path == os.fsencode(WORK) for path, _ in rules)
    names = {"version": level.python, "scratch": f"{WORK}/new" if writable else ""}
    lines = [f"{name} = {value!r}" for name, value in names.items()]
    try:
        outcome = runner.run_program(
            level, "\n".join([*lines, CONTROL]), ProgramLimits(timeout=20.0)
        )
    except BrokenError as error:
        return error.reason
    finally:
        runner.wait_for_orphans()
    return "" if outcome.verdict is ProgramVerdict.PASSED else f"a correct program {outcome}"

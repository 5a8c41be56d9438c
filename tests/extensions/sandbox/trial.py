"""Run programs at the strongest level of this very process, and tell in JSON what was seen.

A program of its own, of the standard library, `spsbench.extensions.sandbox` and `probes`: other
users and other sandboxes start it. stdin: {"level", "programs", "targets", "timeout"}. What
outlives a program becomes a child of this process, and is counted.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from spsbench.extensions.sandbox import levels
from spsbench.extensions.sandbox.choice import survey
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.extensions.sandbox.runner import run_program
from tests.extensions.sandbox.probes import host

SUBREAPER = 36
MAKE = {
    "bwrap": levels.bubblewrap_level,
    "landlock": levels.landlock_level,
    "none": levels.unconfined_level,
}


def main() -> dict[str, Any]:
    asked = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    os.environ["SPS_CANARY"] = "secret"
    limits = ProgramLimits(timeout=asked["timeout"])
    findings = survey(limits)
    found: dict[str, Any] = {"levels": [f[:3] for f in findings], "outcomes": {}, "reached": {}}
    level = next((f.level for f in findings if f.holds), None)
    if asked["level"]:
        level = MAKE[asked["level"]](limits)
    if level is None:
        return found
    found["level"], found["user"] = level.name, level.flags.get("user")
    for name, source in asked["programs"].items():
        with host() as targets:
            given = "".join(f"{key} = {value!r}\n" for key, value in targets.names.items())
            outcome = run_program(level, given + source if asked["targets"] else source, limits)
        found["outcomes"][name] = [outcome.verdict, outcome.detail]
        if targets.reached:
            found["reached"][name] = targets.reached
        left = children(2 if level.name == "none" else 60)
        if left:
            found.setdefault("left", {})[name] = left
            for pid in left:
                os.kill(pid, 9)
    return found


def children(patience: float) -> list[int]:
    """Processes of ours that run; those that have just ended have `patience` seconds to be gone."""
    until = time.monotonic() + patience  # noqa: TID251
    while True:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        tasks = Path("/proc/self/task").glob("*/children")
        found = [int(pid) for task in tasks for pid in task.read_text().split()]
        if not found or time.monotonic() > until:  # noqa: TID251
            return found
        time.sleep(0.01)


if __name__ == "__main__":
    print(json.dumps(main()))

"""Programs side by side, the slow ones again and alone; a broken sandbox judges nothing."""

import threading
import time
from dataclasses import replace

import pytest

from spsbench.extensions.sandbox import levels, scoring
from spsbench.extensions.sandbox.levels import BrokenError, ProgramLimits
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome, ProgramVerdict

LIMITS = ProgramLimits(timeout=1.0)
LEVEL = levels.unconfined_level(LIMITS)  # for our own programs
PASSED = Outcome(ProgramVerdict.PASSED, "", 0.1)
BUSY = Outcome(ProgramVerdict.TIMED_OUT, "", 1.5, wall_only=True)
ENDLESS = Outcome(ProgramVerdict.TIMED_OUT, "", 1.5)


def programs(*sources):
    return [Program(("", f"p{n}", 0), source) for n, source in enumerate(sources)]


def judged(given, **more):
    found = {}

    def told(program, outcome):
        assert program.key[1] not in found
        found[program.key[1]] = outcome

    scoring.judge_programs(given, LEVEL, LIMITS, report=told, **{"workers": 2, **more})
    return found


def test_each_is_told_once():
    found = judged(programs("x = 1", "1 / 0", "import os; os._exit(0)"), workers=3)
    assert [found[f"p{n}"].verdict for n in range(3)] == ["passed", "failed", "ended early"]
    assert judged([]) == {}


def test_only_the_wall_clock_means_again_and_alone(monkeypatch):
    lock, running, most = threading.Lock(), 0, {}
    tries = {}

    def run(level, source, limits):
        nonlocal running
        with lock:
            running += 1
            tries[source] = tries.get(source, 0) + 1
            most[source, tries[source]] = running
        time.sleep(0.02)
        with lock:
            running -= 1
        if source in ("slow", "endless"):
            return BUSY if source == "slow" else ENDLESS
        return BUSY if source == "disturbed" and tries[source] == 1 else PASSED

    monkeypatch.setattr(scoring, "run_program", run)
    found = judged(programs("disturbed", "slow", "endless", *"abcdefgh"), workers=4)
    assert len(found) == 11
    assert tries == {"disturbed": 2, "slow": 2, "endless": 1, **dict.fromkeys("abcdefgh", 1)}
    assert found["p0"] == PASSED
    assert found["p1"] == BUSY
    assert most["disturbed", 2] == most["slow", 2] == 1
    assert max(most.values()) == 4


def test_stopped_between_programs():
    found = []
    scoring.judge_programs(
        programs(*["x = 1"] * 30),
        LEVEL,
        LIMITS,
        workers=2,
        report=lambda program, outcome: found.append(program.key[1]),
        stop=lambda: len(found) >= 3,
    )
    assert 3 <= len(found) <= 8


def test_a_broken_sandbox_is_no_verdict():
    """A filter that the kernel does not take: no program starts."""
    broken = replace(LEVEL, confinement={**LEVEL.confinement, "filter": (b"\0" * 8, ())})
    found = []
    with pytest.raises(BrokenError, match="does not come up"):
        scoring.judge_programs(
            programs(*["x = 1"] * 100),
            broken,
            LIMITS,
            workers=1,
            report=lambda program, outcome: found.append(outcome),
        )
    assert found == []

"""Programs judged by workers: the same verdicts, and a sandbox that must be the same."""

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

from spsbench.errors import MismatchError
from spsbench.extensions.sandbox import confinement, programs
from spsbench.extensions.sandbox.choice import LevelFinding
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.extensions.sandbox.programs import Sandboxed, judge_on
from spsbench.messages import lines_to
from spsbench.settings.execution import Workers
from spsbench.tasks.program_texts import Program
from spsbench.tasks.verdicts import Outcome
from spsbench.workers.environment import check_environment
from spsbench.workers.map_units import BrokenOffError
from tests.extensions.sandbox.samples import right, written
from tests.workers.inline import inline

HELD = LevelFinding("landlock", True, "holds", python="3.11.7")
HOW = Sandboxed(sandbox="auto", limits=ProgramLimits(), understood=False, image="")
PROGRAMS = [Program(("c", f"task/{n}", 0), f"x = {n}") for n in range(6)]


@dataclass(frozen=True)
class MadeUp:
    """The text of a program is its outcome; `spoilt` ones cannot be judged."""

    expected: Any
    here: Any
    spoilt: tuple[str, ...]

    def prepare(self):
        check_environment(self.expected, self.here)

    def __call__(self, unit):
        return [
            "SandboxError: broke"
            if program.source in self.spoilt
            else Outcome("passed", program.source, 0.1)
            for program in unit
        ]


def judged(monkeypatch, held=HELD, spoilt=()):
    inline(
        monkeypatch,
        with_work=lambda work: MadeUp(work.expected, programs.conditions(held), spoilt),
    )
    told, lines = {}, []
    with lines_to(lines.append):
        try:
            judge_on(
                *(Workers(on="processes:1"), HOW, HELD, PROGRAMS),
                report=told.__setitem__,
                stop=lambda: False,
            )
        finally:
            judged.told, judged.said = told, lines
    return told


def test_each_program_has_its_outcome(monkeypatch):
    assert {p: o.detail for p, o in judged(monkeypatch).items()} == {p: p.source for p in PROGRAMS}


def test_a_program_that_cannot_be_judged_is_said_and_the_others_are(monkeypatch):
    with pytest.raises(BrokenOffError, match="1 programs without a verdict"):
        judged(monkeypatch, spoilt=("x = 2",))
    assert len(judged.told) == 5
    assert judged.said == ["no verdict on c/task/2/0: SandboxError: broke"]


def test_another_interpreter_is_refused(monkeypatch):
    with pytest.raises(MismatchError, match=r'interpreter: "3\.11\.7", there "3\.12\.1"'):
        judged(monkeypatch, HELD._replace(python="3.12.1"))


@pytest.mark.cluster
@pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: pip install ray")
@pytest.mark.skipif(
    confinement.landlock_abi() < confinement.FULL, reason=f"needs Landlock ABI {confinement.FULL}"
)
def test_programs_judged_over_ray(tmp_path):
    """Verdict by verdict as here, each worker in its own sandbox."""
    good = right(6)
    lines = [*good, *((task, "    pass\n") for task, _ in good)]
    found = []
    for name, more in (("here", []), ("there", ["--on", "ray"])):
        path = written(tmp_path / f"{name}.jsonl", lines)
        command = [sys.executable, "-m", "spsbench", "score", str(path), "--allow-partial", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        results = path.with_name(f"{path.name}_results.jsonl").read_text().splitlines()
        found.append([(r["task_id"], r["passed"], r["result"]) for r in map(json.loads, results)])
    assert found[0] == found[1]
    assert [passed for _, passed, _ in found[1]] == [True] * 6 + [False] * 6

"""Programs judged by workers: the same verdicts, and a sandbox that must be the same."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from spsbench.distributed import programs
from spsbench.distributed.programs import BrokenOffError, Sandboxed, conditions, judge_on
from spsbench.distributed.protocol import Done, Failed, Hello, Joined, Work
from spsbench.errors import MismatchError
from spsbench.messages import lines_to
from spsbench.sandbox import landlock
from spsbench.sandbox.choice import LevelFinding
from spsbench.sandbox.verdict import ProgramLimits
from spsbench.settings.execution import Crew
from spsbench.tasks.programs.generated import Program
from tests.tasks.programs.conftest import right, written

HELD = LevelFinding("landlock", True, "holds", python="3.11.7")
HOW = Sandboxed(sandbox="auto", limits=ProgramLimits(), understood=False, image="")
PROGRAMS = [Program(("c", f"task/{n}", 0), f"x = {n}") for n in range(6)]


class Scripted:
    """One worker: the text of a program is its outcome; `spoilt` ones cannot be judged."""

    def __init__(self, held=HELD, spoilt=()) -> None:
        self.spoilt, self.coming = spoilt, 1
        self.events = [Joined("w", Hello("node", conditions(held), {}))]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def give(self, worker, piece):
        if any(program.source in self.spoilt for program in piece.units):
            self.events.append(Failed(worker, piece.number, "SandboxError: broke"))
        else:
            work = Work([program.source for program in piece.units])
            self.events.append(Done(worker, piece.number, work))

    def wait(self, seconds):
        return [self.events.pop(0)]


def judged(monkeypatch, workers):
    monkeypatch.setattr(programs, "workers_of", lambda *_: workers)
    told, said = {}, []
    try:
        with lines_to(said.append):
            judge_on(
                *(Crew(on="processes:1"), HOW, HELD, PROGRAMS),
                told=told.__setitem__,
                stop=lambda: False,
            )
    finally:
        judged.told, judged.said = told, said
    return told


def test_each_program_has_its_outcome(monkeypatch):
    assert judged(monkeypatch, Scripted()) == {p: p.source for p in PROGRAMS}


def test_a_program_that_cannot_be_judged_is_said_and_the_others_are(monkeypatch):
    with pytest.raises(BrokenOffError, match="1 programs without a verdict"):
        judged(monkeypatch, Scripted(spoilt=("x = 2",)))
    assert len(judged.told) == 5
    assert judged.said == ["no verdict on c/task/2/0: SandboxError: broke"]


def test_another_interpreter_is_refused(monkeypatch):
    with pytest.raises(MismatchError, match=r'interpreter: "3\.11\.7", there "3\.12\.1"'):
        judged(monkeypatch, Scripted(HELD._replace(python="3.12.1")))


@pytest.mark.cluster
@pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: pip install 'spsbench[ray]'")
@pytest.mark.skipif(landlock.abi() < landlock.FULL, reason=f"needs Landlock ABI {landlock.FULL}")
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

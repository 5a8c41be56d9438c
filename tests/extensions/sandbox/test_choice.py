"""The strongest level that holds is taken, none on trust; below the line is a refusal."""

import platform
import resource
from dataclasses import replace

import pytest

from spsbench.extensions.sandbox import choice, levels
from spsbench.extensions.sandbox.levels import ProgramLimits, SandboxError
from spsbench.extensions.sandbox.runner import run_program
from spsbench.registry import DOCTOR, attribute_at
from spsbench.tasks.verdicts import ProgramVerdict
from tests.extensions.sandbox.situations import namespaces, needs_landlock, replaced

LIMITS = ProgramLimits(timeout=1.0)
needs_bwrap = pytest.mark.skipif(not namespaces(), reason="needs bubblewrap and user namespaces")


@needs_bwrap
@needs_landlock
def test_the_strongest_comes_first():
    found = choice.choose_level("auto", LIMITS)
    assert found.name == "bwrap"
    assert found.python.split()[0] == platform.python_version()
    assert found.protection == "9 calls refused at each start"


@needs_landlock
def test_without_bubblewrap_the_jail_alone(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = choice.survey(LIMITS)
    assert [(f.name, f.holds) for f in findings] == [("bwrap", False), ("landlock", True)]
    assert findings[0].words == "not installed"
    with pytest.raises(SandboxError, match="`sandbox` bwrap does not hold here"):
        choice.choose_level("bwrap", LIMITS)


def test_doctor_shows_each_level_and_what_score_does_without(monkeypatch):
    findings = [choice.LevelFinding("bwrap", False, "not installed")]
    monkeypatch.setattr(choice, "survey", lambda limits: findings)
    assert attribute_at(DOCTOR["sandbox"])() == (
        [("bwrap", False, "not installed")],
        [
            ("sandbox", "bwrap: does not hold, not installed"),
            ("sandbox", "none: `sps score` refuses. docs/howto/programs.md says what to install"),
        ],
    )


@needs_landlock
def test_another_python_does_not_hold():
    level = replace(levels.landlock_level(LIMITS), python="3.99.0 (other)")
    assert "another Python inside" in choice.why_not(level)


@needs_landlock
def test_a_jail_that_fails_runs_nothing():
    """A rule that the kernel does not take: no program may start."""
    level = levels.landlock_level(LIMITS)
    rules = {**level.confinement["landlock"], "attributes": b"\xff" * 64}
    with pytest.raises(SandboxError, match="does not come up"):
        run_program(replaced(level, landlock=rules), "x = 1", LIMITS)
    with pytest.raises(SandboxError, match="does not come up"):
        run_program(replaced(level, filter=(b"\0" * 8, ())), "x = 1", LIMITS)


def lowered(monkeypatch, kind, most):
    """A shell whose hard limit of a kind is `most`."""
    before = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (most, most) if which == kind else before(which)
    )


@needs_landlock
def test_programs_run_under_a_lower_limit_of_open_files(monkeypatch):
    lowered(monkeypatch, resource.RLIMIT_NOFILE, 50)
    level = levels.landlock_level(LIMITS)
    source = "import resource; assert resource.getrlimit(resource.RLIMIT_NOFILE) == (50, 50)"
    assert run_program(level, source, LIMITS).verdict is ProgramVerdict.PASSED


@pytest.mark.parametrize(
    ("kind", "most", "said"),
    [
        (resource.RLIMIT_AS, 600 << 20, "ulimit -Hv is 614400 in this shell: expected 1048576"),
        (resource.RLIMIT_CPU, 1, "ulimit -Ht is 1 in this shell: expected 2"),
        (resource.RLIMIT_NOFILE, 8, "ulimit -Hn is 8 in this shell"),
    ],
)
@pytest.mark.parametrize("name", ["auto", "landlock", "none"])
def test_a_limit_of_the_shell_is_said_instead_of_no_sandbox(monkeypatch, name, kind, most, said):
    lowered(monkeypatch, kind, most)
    with pytest.raises(SandboxError, match=said) as caught:
        choice.choose_level(name, LIMITS, understood=True)
    assert "Install" not in str(caught.value)
    assert {finding.holds for finding in choice.survey(LIMITS)} == {False}

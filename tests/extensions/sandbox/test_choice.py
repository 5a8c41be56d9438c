"""The strongest level that holds is taken, none on trust; below the line is a refusal."""

import json
import os
import resource
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from spsbench.errors import Exit
from spsbench.extensions.sandbox import choice, confinement, isolation, selftest
from spsbench.extensions.sandbox.levels import (
    ProgramLimits,
    SandboxError,
    interpreter,
)
from spsbench.extensions.sandbox.runner import run
from spsbench.registry import DOCTOR, at
from spsbench.tasks.verdicts import ProgramVerdict
from tests.extensions.sandbox.situations import namespaces

LIMITS = ProgramLimits(timeout=1.0)
needs_landlock = pytest.mark.skipif(
    confinement.landlock_abi() < confinement.FULL, reason=f"needs Landlock ABI {confinement.FULL}"
)
needs_bwrap = pytest.mark.skipif(not namespaces(), reason="needs bubblewrap and user namespaces")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def held():
    return selftest.Tested(True, "made up")


@needs_bwrap
@needs_landlock
def test_the_strongest_comes_first():
    found = choice.choose("auto", LIMITS)
    assert (found.name, found.holds) == ("bwrap", True)
    assert found.python == interpreter().release
    assert "probes refused" in found.words


@needs_landlock
def test_without_bubblewrap_the_jail_alone(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = choice.survey(LIMITS)
    assert [(f.name, f.holds) for f in findings] == [("bwrap", False), ("landlock", True)]
    assert findings[0].words == "not installed"
    with pytest.raises(SandboxError, match="`sandbox` bwrap does not hold here"):
        choice.choose("bwrap", LIMITS)


def test_doctor_shows_each_level_and_what_score_does_without(monkeypatch):
    findings = [choice.LevelFinding("bwrap", False, "not installed")]
    monkeypatch.setattr(choice, "survey", lambda limits: findings)
    assert at(DOCTOR["sandbox"])() == (
        [("bwrap", False, "not installed")],
        [
            ("sandbox", "bwrap: does not hold, not installed"),
            ("sandbox", "none: `sps score` refuses. docs/sandbox.md says what to install"),
        ],
    )


def test_below_the_line_is_a_refusal(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    for abi in (0, confinement.FULL - 1):
        monkeypatch.setattr(confinement, "landlock_abi", lambda abi=abi: abi)
        with pytest.raises(SandboxError) as refused:
            choice.choose("auto", LIMITS)
        line = str(refused.value)
        assert refused.value.code == Exit.SANDBOX == 3
        assert line.count("\n") == 0
        assert "bwrap: not installed" in line
        assert f"ABI is {abi}" in line
        assert "Install bubblewrap" in line
        assert choice.UNDERSTOOD in line


@needs_landlock
def test_a_level_that_leaks_does_not_hold():
    """The control of the self-test: with any part of the jail left out, it fails."""
    whole = isolation.landlock_level(interpreter(), LIMITS)
    assert selftest.test(whole).holds
    for part in ("landlock", "filter"):
        broken = replaced(whole, **{part: None})
        tested = selftest.test(broken)
        assert not tested.holds, part
        assert "self-test failed" in tested.words or "ended early" in tested.words


def replaced(level, **confinement):
    return replace(level, confinement={**level.confinement, **confinement})


@needs_landlock
def test_another_python_does_not_hold():
    level = replace(isolation.landlock_level(interpreter(), LIMITS), python="3.99.0 (other)")
    tested = selftest.test(level)
    assert not tested.holds
    assert "another Python inside" in tested.words


@needs_landlock
def test_a_jail_that_fails_runs_nothing():
    """A rule that the kernel does not take: no program may start."""
    level = isolation.landlock_level(interpreter(), LIMITS)
    rules = {**level.confinement["landlock"], "attributes": b"\xff" * 64}
    with pytest.raises(SandboxError, match="does not come up"):
        run(replaced(level, landlock=rules), "x = 1", LIMITS)
    with pytest.raises(SandboxError, match="does not come up"):
        run(replaced(level, filter=(b"\0" * 8, ())), "x = 1", LIMITS)


def test_none_needs_both_options():
    with pytest.raises(SandboxError, match="expected both options"):
        choice.choose("none", LIMITS)
    found = choice.choose("none", LIMITS, understood=True)
    assert found.level is not None
    assert run(found.level, "open('mine', 'w').write('x')", LIMITS).verdict is ProgramVerdict.PASSED


@pytest.fixture
def tested(monkeypatch):
    """What the tests of a level of our own will find, one after the other."""
    coming = []
    monkeypatch.setattr(selftest, "test", lambda level: coming.pop(0))
    monkeypatch.setitem(
        choice.AUTOMATIC,
        "made",
        lambda limits: isolation.unconfined_level(interpreter(), limits),
    )
    return coming


def made_up():
    return choice.survey(LIMITS, ("made",))[0][:3]


def test_findings_are_kept_for_this_situation_only(tested, monkeypatch):
    tested.append(held())
    assert [made_up() for _ in range(3)] == [("made", True, "made up")] * 3
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 99)
    with pytest.raises(IndexError):  # it is tested again
        made_up()


def test_a_refusal_is_not_kept(tested, monkeypatch):
    """What caused it may be gone, and the key cannot tell: say, another filter around us."""
    tested += [selftest.Tested(False, "for now"), held()]
    assert made_up() == ("made", False, "for now")
    assert [made_up() for _ in range(2)] == [("made", True, "made up")] * 2
    monkeypatch.setattr(selftest, "starts", lambda level: "a door opens")
    assert made_up() == ("made", False, "a door opens")
    assert choice.load_findings(choice.situation_digest()) == {}


def test_a_cache_of_others_is_not_believed():
    key = choice.situation_digest()
    choice.save_findings(key, {"bwrap": [True, "so they say"]})
    assert choice.load_findings(key) == {"bwrap": [True, "so they say"]}
    assert stat.S_IMODE(choice.findings_path().stat().st_mode) == 0o600
    assert choice.load_findings("another situation") == {}
    choice.findings_path().chmod(0o666)
    assert choice.load_findings(key) == {}
    choice.findings_path().chmod(0o600)
    for content in ("", "[]", "{", json.dumps({key: 7}), "[" * 100_000):
        choice.findings_path().write_text(content)
        assert choice.load_findings(key) == {}
    elsewhere = choice.findings_path().with_name("elsewhere")
    elsewhere.write_text(json.dumps({key: {"bwrap": [True, ""]}}))
    elsewhere.chmod(0o600)
    choice.findings_path().unlink()
    choice.findings_path().symlink_to(elsewhere)
    assert choice.load_findings(key) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_cache_of_another_user_is_not_believed():
    key = choice.situation_digest()
    choice.save_findings(key, {"bwrap": [True, ""]})
    os.chown(choice.findings_path(), 4242, 4242)
    assert choice.load_findings(key) == {}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    choice.save_findings("key", {})
    assert choice.load_findings("key") == {}


FEW_FILES = """
import resource
from spsbench.extensions.sandbox.isolation import landlock_level
from spsbench.extensions.sandbox.levels import ProgramLimits, interpreter
from spsbench.extensions.sandbox.runner import run
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
limits = ProgramLimits()
source = "import resource; assert resource.getrlimit(resource.RLIMIT_NOFILE) == (50, 50)"
print(run(landlock_level(interpreter(), limits), source, limits).verdict)
"""


@needs_landlock
def test_programs_run_under_a_lower_limit_of_open_files():
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == ProgramVerdict.PASSED, done.stdout + done.stderr


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
    before = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (most, most) if which == kind else before(which)
    )
    with pytest.raises(SandboxError, match=said) as caught:
        choice.choose(name, LIMITS, understood=True)
    assert "Install" not in str(caught.value)
    assert {finding.holds for finding in choice.survey(LIMITS)} == {False}

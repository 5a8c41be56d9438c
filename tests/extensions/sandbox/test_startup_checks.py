"""What a filter around the sandbox only pretends is found out at every start."""

import sys

import pytest

from spsbench.extensions.sandbox import choice, confinement, levels
from spsbench.extensions.sandbox.levels import (
    ProgramLimits,
    SandboxError,
    jail_tasks,
    processor_family,
)
from spsbench.extensions.sandbox.runner import TASKS
from tests.extensions.sandbox import mask
from tests.extensions.sandbox.situations import needs_landlock, replaced, run_trial

LIMITS = ProgramLimits(timeout=1.0)
PRETEND = ("python", mask.__file__, "--pretend")
STEAL = {"steal": "open('/etc/passwd').read()", "write": "open(canary, 'w').write('x')"}
ALL = [(part, door) for part, some in confinement.startup_checks("x86_64").items() for door in some]

only_here = pytest.mark.skipif(
    processor_family() != "x86_64" or sys.platform != "linux",
    reason="numbers of calls are those of x86-64",
)


CORRECT = {"correct": "import fractions\nassert fractions.Fraction(2, 4).numerator == 1"}


@needs_landlock
@only_here
@pytest.mark.parametrize("host", ["no bwrap", "bare"])
def test_correct_programs_are_not_failed_behind_a_filter_that_adds_no_rules(host, open_path):
    """It answers landlock_add_rule and adds nothing: what must be open is shut."""

    def trial(pretended):
        found = run_trial(host, "root", CORRECT, open_path, behind=(*PRETEND, pretended))
        return [told[0] for told in found["outcomes"].values()]

    assert trial("-") == ["passed"]
    assert trial("445") == []


CALLS = {
    "prctl": "157",
    "capset": "126",
    "setresuid": "117",
    "setresgid": "119",
    "limits": "160,302",
    "rules": "445",
    "restriction": "446",
    "ruleset and restriction": "444,446",
}


@needs_landlock
@only_here
@pytest.mark.parametrize("name", CALLS)
def test_a_step_that_is_only_pretended_runs_nothing(name, open_path):
    behind = (*PRETEND, CALLS[name])
    readable = name.startswith("setres")
    found = run_trial("no bwrap", "root", STEAL, open_path, behind=behind, readable=readable)
    assert found["outcomes"] == {}, found
    assert not any(holds for _, holds, _ in found["levels"])


@needs_landlock
@only_here
def test_a_namespace_that_is_only_pretended_counts_no_tasks(open_path):
    """The user's other tasks would be counted with the program's, and its threads refused."""
    asks = {
        "asks": "import resource\nraise ValueError(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    }
    behind = (*PRETEND, "272")
    found = run_trial("no bwrap", "root", asks, open_path, behind=behind, targets=False)
    assert found["level"] == "landlock"
    assert found["outcomes"]["asks"][:2] != ["failed", f"ValueError: {TASKS}"]


def powerless(asked):
    """A level whose Landlock and filter allow everything."""
    level = levels.landlock_level(LIMITS)
    everything = (1 << confinement.FS[confinement.FULL]) - 1
    rules = {**level.confinement["landlock"], "rules": ((b"/", everything),)}
    allowed = (b"\x06\x00\x00\x00\x00\x00\xff\x7f", ())
    return replaced(level, landlock=rules, filter=allowed, startup_checks=asked)


@needs_landlock
def test_startup_checks_are_asked_for_at_every_level_that_isolates():
    made = jail_tasks(confinement.FULL, scratch=True)
    assert made["startup_checks"].keys() == {"landlock", "filter"}
    assert choice.why_not(levels.landlock_level(LIMITS)) == ""
    assert "open from inside" in choice.why_not(powerless(made["startup_checks"]))
    shut = replaced(
        levels.landlock_level(LIMITS), landlock=confinement.landlock_rules(confinement.FULL, [])
    )
    assert "a correct program failed" in choice.why_not(shut)
    assert levels.unconfined_level(LIMITS).confinement["startup_checks"] == {}


@needs_landlock
@pytest.mark.parametrize(("part", "door"), ALL, ids=[door[0] for _, door in ALL])
def test_no_level_is_chosen_that_leaves_one_door_open(monkeypatch, part, door):
    checks = {part: confinement.startup_checks(processor_family())[part]}
    checks[part] = tuple(check for check in checks[part] if check[0] == door[0])
    for name in choice.AUTOMATIC:
        monkeypatch.setitem(choice.AUTOMATIC, name, lambda limits: powerless(checks))
    for name in ("auto", *choice.AUTOMATIC):
        with pytest.raises(SandboxError) as refused:
            choice.choose_level(name, LIMITS)
        assert door[0] in str(refused.value)

"""Programs that misbehave get the right verdict at each level, and leave nothing."""

import pytest

from tests.extensions.sandbox.situations import run_trial
from tests.extensions.sandbox.traps import BOTTOMLESS, TRAPS

LEVELS = {"bare": "bwrap", "no bwrap": "landlock"}
FEW = ("endless sleep", "handled limit", "deep recursion", "memory", "output to all", "crash")
QUICK = (*FEW, "right answer, early end", "missing import", "NUL", "half a surrogate pair")


def check(host, names, timeout, tmp, user="root"):
    programs = {name: TRAPS[name][0] for name in names} | {"bottomless": BOTTOMLESS}
    found = run_trial(host, user, programs, tmp, timeout=timeout, targets=False)
    assert found["level"] == LEVELS[host]
    assert "left" not in found
    verdicts = {name: found["outcomes"][name][0] for name in names}
    assert verdicts == {name: TRAPS[name][1] for name in names}
    assert found["outcomes"]["bottomless"][0] != "passed"


@pytest.mark.parametrize("host", LEVELS)
def test_traps(host, open_path):
    check(host, QUICK, 1.0, open_path)


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "user"])
@pytest.mark.parametrize("host", LEVELS)
def test_all_traps(host, user, open_path):
    check(host, tuple(TRAPS), 3.0, open_path, user)

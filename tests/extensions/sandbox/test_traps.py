"""Programs that misbehave get the right verdict at each level, and leave nothing."""

import pytest

from spsbench.tables import read_table
from tests.extensions.sandbox.situations import run_trial

# Whether memory, time or the interpreter gives out first is the machine's affair; it must not pass.
BOTTOMLESS = "import sys; sys.setrecursionlimit(10 ** 9)\nf = lambda x: f([0] * 10_000)\nf(0)"
CODED = {  # too long for TOML, or none of its texts
    "nested source": ("x = " + "(" * 5000 + ")" * 5000, "failed"),
    "long sum": ("x = " + "+".join(["1"] * 200_000), "failed"),
    "five megabytes": ("x = '" + "x" * (5 << 20) + "'", "passed"),
    "half a surrogate pair": ("x = '\ud800'", "failed"),
}
TRAPS = CODED | {
    name: (program, verdict)
    for verdict, programs in read_table(__file__, "traps.toml").items()
    for name, program in programs.items()
}
"""Programs that misbehave without malice, and the verdict each must have: name -> both."""
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

"""Cheap ways to be called passed: names that the verdict is looked up by, hooks at the end."""

import pytest

from spsbench.extensions.sandbox import levels
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.extensions.sandbox.runner import run_program
from spsbench.tables import read_table

LIMITS = ProgramLimits(timeout=2.0)
LEVEL = levels.unconfined_level(LIMITS)  # they reach for the verdict, not for the host

FAILING = "\nassert 1 + 1 == 3"
MENDED = read_table(__file__, "cheats.toml")


@pytest.mark.parametrize("name", MENDED)
def test_what_a_name_means_by_then_changes_no_verdict(name):
    found = run_program(LEVEL, MENDED[name] + FAILING, LIMITS)
    assert found.verdict == "failed", found


def test_what_an_exception_means_is_told_by_its_real_class():
    assert run_program(
        LEVEL, "import builtins\nbuiltins.MemoryError = int\nimport nothing_there", LIMITS
    )[:2] == ("import missing", "ModuleNotFoundError: No module named 'nothing_there'")
    code = "import builtins\nkeep = MemoryError\nbuiltins.MemoryError = ValueError\nraise keep('x')"
    assert run_program(LEVEL, code, LIMITS)[:2] == ("out of memory", "MemoryError: x")

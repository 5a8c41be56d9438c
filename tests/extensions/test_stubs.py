"""The stub of the package: it is what the options are, and checkers and editors read it."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spsbench
from recipes.stubs import STUB, stub
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.execution import Access
from spsbench.settings.options import options_of

CALLS_TYPED = tomllib.loads((Path(__file__).parent / "stub_calls.toml").read_text())


def test_the_stub_is_that_of_the_options():
    assert STUB.read_text() == stub(), "run python recipes/stubs.py"


def test_signatures_list_every_option_without_torch():
    code = "import inspect, sys, spsbench; s = inspect.signature(spsbench.load); assert 'torch' "
    code += "not in sys.modules; print(*s.parameters)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*OF_CELL, *options_of(Access), "say"} == {*run.stdout.split()}
    listed = inspect.signature(spsbench.load).parameters["top_k"]
    assert (listed.annotation, listed.default, listed.kind.name) == (int, 0, "KEYWORD_ONLY")


@pytest.mark.slow
def test_a_checker_finds_misspelt_keys_and_wrong_types_and_infers_the_rest(tmp_path):
    def errors(text):
        path = tmp_path / "example.py"
        path.write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", str(path)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=STUB.parents[1])
        return [line for line in run.stdout.splitlines() if ": error: " in line]

    right, wrong = CALLS_TYPED["right"], CALLS_TYPED["wrong"]
    assert errors(right) == []
    found = "\n".join(errors(right + "\n".join(wrong.values())))
    assert all(f'"{name}"' in found for name in wrong)

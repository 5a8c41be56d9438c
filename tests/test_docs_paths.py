"""What the docs name of the package is there: modules move, words stay behind."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = sorted(path.parent for path in (ROOT / "spsbench").rglob("__init__.py"))
FILE = re.compile(r"\b(?:spsbench|benchmarks|tests)/[\w/-]+\.(?:py|c|svg|toml)\b")


def is_there(name):
    """Whether a file is there, or would be if its extension were."""
    part = re.match(r"(?:spsbench|tests)/extensions/(?:\w+/)?", name)
    return (ROOT / name).exists() or (part is not None and not (ROOT / part[0]).exists())


@pytest.mark.parametrize("page", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_are_there(page):
    named = set(FILE.findall(page.read_text()))
    of_a_new_one = ("methods/drafters/x.py", "engines/x.py", "heads/x.py")
    kept = {f"spsbench/{name}" for name in of_a_new_one}
    missing = [name for name in sorted(named - kept) if not is_there(name)]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_that_are_linked_are_there(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links {missing}"


def test_each_file_of_results_is_linked_from_a_page():
    pages = "".join(page.read_text() for page in DOCS)
    for path in [*ROOT.glob("results/*.[jm]*"), *ROOT.glob("benchmarks/results/*.md")]:
        assert f"results/{path.stem}" in pages


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_is_read_in_an_order_that_is_there(room):
    order = " ".join((room / "__init__.py").read_text().split()).partition("Read ")[2]
    names = re.findall(r"`(\w+)`", order.partition(".")[0].partition(";")[0])
    assert not [name for name in names if not [*room.glob(name), *room.glob(f"{name}.py")]]


@pytest.mark.needs_fast
def test_ci_runs_the_commands_that_contributing_names():
    lead = (ROOT / "CONTRIBUTING.md").read_text().split("must pass", 1)[0]
    commands = re.findall(r"`(make [\w-]+)`", lead)
    assert len(commands) >= 3
    for file in (".github/workflows/ci.yml", ".ci/run"):
        script = (ROOT / file).read_text()
        missing = [command for command in commands if not re.search(rf"{command}\b", script)]
        assert not missing, f"{file} does not run {missing}"

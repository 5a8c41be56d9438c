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


NAME = re.compile(r"`(?:spsbench\.)?([a-z_]\w*(?:\.\w+)+)(?:\(\))?`")
ENDING = re.compile(r"\.(?:[ch]|jsonl?|toml|py|md|html|txt|log|lock|model)$")  # of files
OTHERS = {  # of objects, tensors, answers and files, not of modules that are called alike
    "model.device", "inputs.ids", "mtp.fc", "model.mtp_layers.0", "metrics.speculative_decoding",
    "files.MODEL.NAME",
}  # fmt: skip


def is_defined(name):
    """Whether a dotted name is a module, or one's definition; None: it begins with no module."""
    parts, source = name.split("."), ROOT / "spsbench"
    for cut in range(len(parts), 0, -1):
        path = "/".join(parts[:cut])
        modules = [*source.glob(f"**/{path}.py"), *source.glob(f"**/{path}/__init__.py")]
        if modules:
            last = parts[-1]
            pattern = rf"(?m)(?:def|class|as) {last}\b|^\s*(?:self\.)?{last}(?:: |, .*= | = )"
            return cut == len(parts) or any(re.search(pattern, m.read_text()) for m in modules)
    return None


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_comments_name_have_what_they_name(room):
    for path in room.glob("*.py"):
        names = {n for n in NAME.findall(path.read_text()) if not ENDING.search(n)}
        gone = [name for name in sorted(names - OTHERS) if is_defined(name) is False]
        assert not gone, f"{path.relative_to(ROOT)} names {gone}"


def test_a_name_that_is_gone_is_seen():
    assert is_defined("loop.sampling.Warp")
    assert is_defined("audit.statistical.positions")
    assert [is_defined(name) for name in ("audit.warping", "loop.sampling.Wrap")] == [False, False]
    assert is_defined("torch.cat") is None


@pytest.mark.needs_fast
def test_ci_runs_the_commands_that_contributing_names():
    lead = (ROOT / "CONTRIBUTING.md").read_text().split("must pass", 1)[0]
    commands = re.findall(r"`(make [\w-]+)`", lead)
    assert len(commands) >= 3
    for file in (".github/workflows/ci.yml", ".ci/run"):
        script = (ROOT / file).read_text()
        missing = [command for command in commands if not re.search(rf"{command}\b", script)]
        assert not missing, f"{file} does not run {missing}"

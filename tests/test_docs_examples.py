"""Python in the docs: every block compiles, and what it imports or documents is there."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
API = ROOT / "docs" / "reference" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def resolved(dotted):
    """Return the module or attribute of a dotted name."""
    head, _, last = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(head), last)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_imports_of_python_examples_exist(page):
    for block in BLOCK.findall(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("spsbench"):
                for name in node.names:
                    assert resolved(f"{node.module}.{name.name}") is not None


def test_names_of_the_reference_exist():
    names = re.findall(r"^::: (\S+)$", API.read_text(), re.M)
    assert names
    assert all(resolved(name) is not None for name in names)


def test_page_of_the_reference_shows_its_section():
    (example,) = [block for block in BLOCK.findall(API.read_text()) if "Section(" in block]
    names = {}
    exec(compile(example, str(API), "exec"), names)
    assert "alpha rose from 0.31 to 0.64" in str(names["page"])


@pytest.mark.slow
def test_examples_of_the_reference_run(tmp_path, monkeypatch, capsys):
    """In one go, as they stand on the page."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(API.read_text())
    assert len(blocks) == 7
    names = {}
    for block in blocks:
        exec(compile(block, str(API), "exec"), names)
    said = capsys.readouterr()
    assert "`temperature` is -1.0: expected 0 or more" in said.out
    assert "held" in said.out.lower()
    assert (tmp_path / "work" / "run" / "summary.json").exists()
    assert len(names["run"].summary) == 3
    assert names["figure"].startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.needs_fast
def test_page_and_notebook_of_transformers_run():
    notebook = json.loads((ROOT / "docs/examples/transformers.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for blocks in BLOCK.findall((ROOT / "docs/howto/transformers.md").read_text()), cells:
        names = {}
        for block in blocks:
            exec(compile(block, "transformers", "exec"), names)
        assert names["speculative"].metrics.block_efficiency >= 1

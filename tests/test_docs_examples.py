"""Python in the docs: every block compiles, and what it imports or documents is there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def resolved(dotted):
    """Return the module or attribute of a dotted name."""
    head, _, last = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(head), last)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_of_python_examples_exist(page):
    for block in BLOCK.findall(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("spsbench"):
                for name in node.names:
                    assert resolved(f"{node.module}.{name.name}") is not None


def test_names_of_the_reference_exist():
    names = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.M)
    assert names
    assert all(resolved(name) is not None for name in names)


def test_sheet_of_the_page_example_is_on_its_page():
    example = BLOCK.findall((ROOT / "docs" / "page.md").read_text())[0]
    made = {}
    exec(compile(example, "docs/page.md", "exec"), made)
    assert "alpha rose from 0.31 to 0.64" in str(made["page"])

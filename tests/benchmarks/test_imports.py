"""Scripts of benchmarks and recipes that no test runs import only names that the package has."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for room in ("benchmarks", "recipes") for path in (ROOT / room).rglob("*.py"))


@pytest.mark.needs_fast
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_imports_names_that_exist(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spsbench"):
            for name in node.names:
                if not hasattr(import_module(node.module), name.name):
                    import_module(f"{node.module}.{name.name}")

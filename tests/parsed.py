"""Sources as syntax trees, parsed once a process for all tests that search them."""

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))

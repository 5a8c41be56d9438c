"""What users read, taken from the package: its commands, and the strings of its modules."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from spsbench.cli.main import app


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command by its name, groups too, imported as its help would be."""
    pending: list[tuple[str, Any]] = [("sps", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        context = typer.Context(command)
        for part in command.list_commands(context) if hasattr(command, "list_commands") else ():
            pending.append((f"{name} {part}", command.resolve_command(context, [part])[1]))
        yield name, command


@cache
def strings(path: Path) -> list[tuple[int, str]]:
    """The line and text of each string of a module but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    return [(node.lineno, node.value) for node in nodes if isinstance(node.value, str)]

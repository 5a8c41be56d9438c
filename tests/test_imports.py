"""Modules of the package: all can be imported, none needs itself, none hides a public function."""

import ast
import importlib
import pkgutil
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import spsbench
from tests.parsed import parsed

ROOT = Path(spsbench.__file__).parent
FUNCTIONS = ("bench", "generate", "load")


def modules():
    found = (each.name for each in pkgutil.walk_packages([str(ROOT)], "spsbench."))
    return [name for name in found if not name.endswith("__main__")]


def imported(module, known):
    """The modules that `module` imports anywhere, inside functions as well."""
    path = ROOT.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            parts = {f"{node.module}.{each.name}" for each in node.names}
            found |= parts & known or {node.module}
    return found & known - {module}


def test_imports_have_no_circle():
    known = set(modules())
    graph = {module: imported(module, known) for module in known}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from error


def test_public_functions_stay_callable_after_every_import():
    for module in modules():
        importlib.import_module(module)
    assert all(callable(getattr(spsbench, name)) for name in FUNCTIONS)
    assert isinstance(spsbench.Pair, type)
    assert not {module.split(".")[1] for module in modules()} & {*FUNCTIONS, "Pair"}

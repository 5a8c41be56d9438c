"""Docstrings name what there is: dotted names in backticks resolve, and arguments exist."""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import spsbench
from tests.parsed import parsed

ROOT = Path(spsbench.__file__).parent
DOTTED = re.compile(r"`(?:spsbench\.)?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
FILES = re.compile(
    r"\.(json|jsonl|toml|py|c|h|md|js|css|html|txt|gguf|safetensors|bin|pt|model|log|npz|gz|zip|so|lock|jinja|tar|parquet|csv|svg|pdf|png)$"
)
KEYS = {  # of files, figures and settings
    *(
        "lm_head.weight",
        "mtp.fc",
        "quality.rouge2",
        "models.target.dtype",
        "spsbench.verifiers",
        "speculators_config.verifier",
    ),
    *("metrics.speculative_decoding", "x.low", "x.high", "with_load.x"),
}
ARGUMENT = re.compile(r"^ {4}(\*{0,2}\w+)(?:, (\*{0,2}\w+))*(?: \([^)]*\))?:", re.M)
MODULES = sorted(
    path.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", ".")
    for path in ROOT.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py") and "jail" not in path.name
)


def attribute(value: object, names: list[str]) -> bool:
    """Return whether `value.names[0].names[1]...` is there: an attribute, field or annotation."""
    for name in names:
        members = {**getattr(value, "__annotations__", {}), **getattr(value, "__dict__", {})}
        for base in getattr(value, "__mro__", ()):
            members |= {**getattr(base, "__annotations__", {}), **vars(base)}
        if hasattr(value, name):
            value = getattr(value, name)
        else:  # of a field's own members nothing is known without an object
            return name in members or (inspect.isclass(value) and sets(value, name))
    return True


def sets(owner: type, name: str) -> bool:
    """Return whether a method of the class assigns `self.name`."""
    try:
        return f"self.{name}" in inspect.getsource(owner)
    except (OSError, TypeError):
        return False


def importable(name: str) -> object | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def of_that_name() -> dict[str, list[object]]:
    """Return every module and class of the package by its last name."""
    named: dict[str, list[object]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        named.setdefault(name.rpartition(".")[2], []).append(module)
        for key, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == name:
                named.setdefault(key, []).append(value)
    return named


def resolves(reference: str, owners: list[object], parameters: set[str]) -> bool:
    """Return whether a dotted name means something, as seen from a docstring of `owners`."""
    names = reference.split(".")
    if names[0] in parameters | {"self", "cls"}:
        return True  # of an argument: its type says what it has
    if any(attribute(owner, names) for owner in owners):
        return True
    if any(attribute(value, names[1:]) for value in of_that_name().get(names[0], ())):
        return True  # a class of ours, or a module, by its own name
    for prefix in ("spsbench.", ""):
        for end in range(len(names), 0, -1):
            if module := importable(prefix + ".".join(names[:end])):
                if attribute(module, names[end:]):
                    return True
                break
    return False


def documented(tree: ast.Module):
    """Yield each docstring with its node and the classes around it."""

    def visit(node, classes):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if text := ast.get_docstring(child):
                    yield child, classes, text
                inner = [*classes, child.name] if isinstance(child, ast.ClassDef) else classes
                yield from visit(child, inner)

    if text := ast.get_docstring(tree):
        yield tree, [], text
    yield from visit(tree, [])


def parameters_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
        own = {
            n.attr
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute) and ast.dump(n.value).startswith("Name(id='self'")
        }
        return own.union(fields, *map(parameters_of, inits))
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    by_decorator = {"say" for name in node.decorator_list if "takes_say" in ast.dump(name)}
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return by_decorator | {argument.arg for argument in every}


@pytest.mark.parametrize("name", MODULES)
def test_what_docstrings_name_is_there(name):
    module = importlib.import_module(name)
    path = ROOT.parent.joinpath(*name.split(".")).with_suffix(".py")
    unknown = []
    for node, classes, text in documented(parsed(path)):
        owners: list[object] = [module]
        for class_name in [*classes, getattr(node, "name", "")]:
            owners.append(getattr(owners[-1], class_name, module))
        inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        known = parameters_of(node) | (inside if not isinstance(node, ast.Module) else set())
        unknown += [
            reference
            for reference in DOTTED.findall(text)
            if not FILES.search(reference)
            and reference not in KEYS
            and not resolves(reference, owners, known)
        ]
        block = re.search(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
        for match in ARGUMENT.finditer(block[1] if block else ""):
            unknown += [
                f"argument {argument}"
                for argument in match[0].strip().rstrip(":").split(" (")[0].split(", ")
                if argument.strip("*") not in known
            ]
    assert unknown == []

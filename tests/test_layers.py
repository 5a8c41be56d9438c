"""The architecture, as a list of layers: what a file may import is what stands below it.

Read from the syntax trees, so that an import inside a function counts as well. A new room must be
given its place in `LAYERS`, or this test fails.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from spsbench.registry import KINDS
from tests.parsed import parsed

ROOT = Path(__file__).parents[1] / "spsbench"

LAYERS = (
    # The rooms of the package in order: a line may import what stands above it, and its own.
    {"errors", "messages", "registry", "spec", "version"},
    {"sources"},
    {"plugins", "hardware"},
    {"foreign"},
    {"serving"},
    {"settings"},
    {"metrics"},
    {"loop"},
    {"engines"},
    {"parallel"},
    {"models"},
    {"methods"},
    {"store"},
    {"workers"},
    {"tasks"},
    {"reports"},
    {"benchmark"},
    {"planning"},
    {"audit"},
    {"pair"},
    {"cli", "__main__"},
    {
        "extensions",
        *(f"extensions.{name}" for name in ("check", "cpu", "lm_eval", "sandbox", "training")),
    },
)
ALONE = {"errors", "messages", "registry", "spec", "version"}  # import nothing of spsbench
TORCH_FREE = ALONE | {
    *(
        "sources",
        "plugins",
        "hardware",
        "foreign",
        "settings",
        "metrics",
        "store",
        "tasks",
    ),
    "reports",
    "serving",
    "extensions.check",
}
FORECAST = ROOT / "planning" / "forecast"  # the arithmetic of plans: torch-free, and below the rest
TENSOR_LIBRARIES = {"torch", "transformers", "evaluate", "datasets", "safetensors", "tokenizers"}

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part(path):
    return room(path.relative_to(ROOT).with_suffix("").parts)


def room(names):
    """The room of a module, by its names below the package; the longest that has a place."""
    pair = ".".join(names[:2])
    return pair if pair in LEVEL else names[0]


@cache
def imported(path, at_load=False):
    """Full names of the modules that `path` imports: anywhere in it, or when it is loaded."""
    names = set()

    def visit(node):
        if at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if (node.module or "").split(".")[0] == "spsbench":
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(parsed(path))
    return names


def of_ours(names):
    parts = {room(name.split(".")[1:]) for name in names if name.startswith("spsbench.")}
    return {name for name in parts if not name.startswith("__")}


def test_imports_point_down():
    for path in FILES:
        here = part(path)
        assert here in LEVEL, f"{here} has no place in LAYERS"
        for there in of_ours(imported(path)) - {here}:
            assert there in LEVEL, f"{path} imports {there}, which has no place in LAYERS"
            assert LEVEL[there] <= LEVEL[here], f"{path} imports {there}, which is above it"
        if here in ALONE:
            assert not of_ours(imported(path)), f"{path} imports nothing of spsbench"


def test_nothing_but_itself_imports_an_extension():
    """It comes in by a line of strings, as another package would, so that it can be taken away."""
    for path in [*FILES, ROOT / "__init__.py"]:
        names = {n for n in imported(path) if n.startswith("spsbench.extensions.")}
        own = ".".join(("spsbench", *path.relative_to(ROOT).parts[:2]))
        assert all(name.startswith(own) for name in names), path


def test_tests_of_the_core_load_no_extension():
    """Nor do the scripts that they import, at load: they run where there are no extensions."""
    folder = ROOT.parent / "benchmarks"
    paths = {".".join(p.relative_to(folder).with_suffix("").parts): p for p in folder.rglob("*.py")}
    tests = [p for p in (ROOT.parent / "tests").rglob("*.py") if "extensions" not in p.parts]
    for file, test, names in loaded(tests, lambda names: map(paths.get, names & paths.keys())):
        extensions = {name for name in names if name.startswith("spsbench.extensions")}
        assert not extensions, f"{test} loads {extensions} through {file}"


def test_forecast_imports_nothing_else_of_planning():
    for path in FORECAST.glob("*.py"):
        ours = {n for n in imported(path) if n.startswith("spsbench.planning.")}
        assert all(name.startswith("spsbench.planning.forecast") for name in ours), path


def test_no_two_parts_import_each_other():
    """Parts of one line may lean on each other, but not in a circle."""
    below_it = {name: set() for name in LEVEL}
    for path in FILES:
        below_it[part(path)] |= of_ours(imported(path)) & LEVEL.keys() - {part(path)}

    def below(name, above):
        assert name not in above, f"a circle: {' -> '.join((*above, name))}"
        for other in below_it[name]:
            below(other, (*above, name))

    for name in below_it:
        below(name, ())


def test_torch_free_rooms_never_load_torch():
    """Nor does anything that they import."""
    rooms = [path for path in FILES if part(path) in TORCH_FREE or FORECAST in path.parents]
    for file, root, names in loaded(rooms, files_of):
        heavy = {name.split(".")[0] for name in names} & TENSOR_LIBRARIES
        assert not heavy, f"{root} loads {heavy} through {file}"


def files_of(names):
    """The files of ours that are loaded with modules: their own, and those of their packages."""
    for name in names:
        steps = name.split(".")
        stems = [ROOT.parent.joinpath(*steps[:n]) for n in range(1, len(steps) + 1)]
        files = [f for stem in stems for f in (stem.with_suffix(".py"), stem / "__init__.py")]
        yield from (file for file in files if file.exists())


def loaded(roots, files_of):
    """Each file that is loaded with a root, that root, and the full names that it imports."""
    ahead = {path: path for path in roots}
    seen = set()
    while ahead:
        file, root = ahead.popitem()
        seen.add(file)
        names = imported(file, at_load=True)
        yield file, root, names
        ahead |= {path: root for path in files_of(names) if path not in seen}


def test_layers_are_the_rooms():
    """Every name is there, and the package stays small enough to be taken in at a glance."""
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert {name for name in LEVEL if "." not in name} == rooms | modules | {"extensions"}
    assert len(rooms) <= 21
    assert len(modules) <= 9


INTERFACES = (
    # what each room gives to the command line, which goes past none of them
    *("spsbench.pair", "spsbench.benchmark.bench", "spsbench.planning.plan"),
    "spsbench.planning.logs",
    *("spsbench.planning.pair_costs", "spsbench.audit.verify", "spsbench.models.prepare"),
    *("spsbench.models.prompts", "spsbench.planning.forecast", "spsbench.loop.text"),
)


@pytest.mark.parametrize("command", ["generate", "bench", "plan"])
def test_commands_consume_the_library(command):
    """What generates and measures is called through it alone, so that Python can do it as well."""
    own = [*(ROOT / "cli").glob(f"{command}.py"), *(ROOT / "cli" / command).glob("*.py")]
    assert own
    for path in own:
        names = {name for name in imported(path) if not name.startswith(INTERFACES)}
        below = {room(name.split(".")[1:]): name for name in names if name.count(".") > 1}
        past = {n for r, n in below.items() if r in LEVEL and r not in TORCH_FREE | {"cli"}}
        assert not past, f"{path} reaches past the interfaces, to {past}"


def test_no_kind_of_method_leans_on_another():
    folders = {path.parent.name for path in (ROOT / "methods").glob("*/__init__.py")}
    kinds = folders & set(KINDS)  # what several drafters share is no kind
    for kind in kinds:
        for path in (ROOT / "methods" / kind).rglob("*.py"):
            others = {f"spsbench.methods.{other}" for other in kinds - {kind}}
            names = {name for name in imported(path) if name.startswith(tuple(others))}
            assert not names, f"{path} imports another kind of plug-in: {names}"


def test_no_escapes():
    for path in [*FILES, ROOT / "__init__.py"]:
        assert "TYPE_CHECKING" not in path.read_text(), f"{path}: an import for types only"

"""The tests of a change: `python -m tests.change` prints their paths, `make test-change` runs them.

A change is what differs from the branch `main`, or from the branch that is named; what git does not
know yet is part of it. Its tests are those that changed, those of a changed module's room, those
that import a changed module, and of helpers below `tests` those that import them. The command says
nothing of what other rooms do with a change: CI runs the whole suite.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = {"audit": ("audit", "exact")}
"""Folder of the package -> folders of its tests, where they are not called alike."""
ALWAYS = ("tests/test_fields.py", "tests/test_messages.py", "tests/test_registry.py")


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from the commit where this branch left `base`."""
    git = ("git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base)
    others = ("git", "ls-files", "--others", "--exclude-standard")
    outputs = (subprocess.check_output(command, text=True) for command in (git, others))
    return [line for output in outputs for line in output.splitlines()]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and names in them, which may be modules."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def tests_of(changed: list[str]) -> list[str]:
    """Return the files and folders of tests that see a change of these paths."""
    imports = {path: {*imported(path)} for path in Path("tests").glob("**/*.py")}
    modules, tests = set[str](), {*ALWAYS}
    new = {path.removesuffix(".py").replace("/", ".") for path in changed if path.endswith(".py")}
    while new:  # a helper of tests is seen by those that import it
        modules |= new
        new = {
            ".".join(path.with_suffix("").parts)
            for path, names in imports.items()
            if names & modules
        } - modules
    tests |= {str(path) for path in imports if ".".join(path.with_suffix("").parts) in modules}
    for path in changed:
        if path.startswith("spsbench/"):
            room = str(Path(path).parent.relative_to("spsbench"))
            folders = ROOMS.get(room.partition("/")[0], (room,))
            tests |= {
                f"tests/{name}" for name in folders if name != "." and Path("tests", name).is_dir()
            }
        if path.startswith("docs/") or path.endswith(".md"):
            tests |= {str(path) for path in Path("tests").glob("test_docs_*.py")}
    folders = [name for name in tests if not name.endswith(".py")]
    is_test = [name for name in tests if Path(name).name.startswith("test_")]
    alone = [name for name in is_test if not any(name.startswith(f"{f}/") for f in folders)]
    return sorted([*folders, *alone])


if __name__ == "__main__":
    base = next((word for word in sys.argv[1:] if not word.startswith("-")), "main")
    print(" ".join(tests_of(changed_files(base))))

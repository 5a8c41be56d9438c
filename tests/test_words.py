"""Names that only this repository used do not come back: the field's word stands for each.

Modules, what they define at their top, and the variables of some rooms are looked at.
"""

import ast
from pathlib import Path

from tests.parsed import parsed

PACKAGE = Path(__file__).parents[1] / "spsbench"

MODULES = set(
    """
    tape lowering worth trials making laying preparing verdict kept packings origins
    staircase company over_codes coded_tiles own surprises boundary soundness again given
    free alone arms drawn in_turn material reduces outlook chances needed heart meeting
    channel crowd spinning memory_kept disks greeting lacking shelves same trail drive asked
    telling place crew shelf translated skips rungs ladder chosen allowing traced
    traced_of asked_along asking stops outset course known growing unrolled many named
    partial doors orphans patience money dialect safe
    """.split()  # noqa: SIM905
)
DEFINED = {
    *("Heart", "Company", "Crew", "Team", "Meeting", "Hands", "Shelf", "Staircase", "Told"),
    *("Lesson", "Guess", "Foretold", "Trail", "soundness", "see_off", "patiently"),
    *("Material", "Alone", "Free", "FreeLM", "InTurn", "Outlook", "outlook", "Kept", "Pace"),
    *("Prices", "Sheet", "Mark", "Mood", "Gathered", "Money", "money", "Dialect", "thrown"),
    *("told", "untold", "opened", "lost", "canned", "frees"),
}
LOCAL = {"told", "heard", "asked", "crew", "hands"}
VAGUE = {
    *("found", "made", "own", "each", "known", "given", "rest", "wanted", "shown", "hear"),
    *LOCAL,
}
ROOMS_WITHOUT_VAGUE_NAMES = ("planning", "reports", "metrics", "audit", "store")
ROOMS = ("planning", "reports", "metrics", "cli", "api", "settings", "store", "benchmark")


def test_no_module_has_a_name_of_the_old_dialect():
    found = [
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.stem in MODULES
    ]
    assert not found, "call them by the field's word"


def test_no_class_or_function_has_a_name_of_the_old_dialect():
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for node in parsed(path).body
        for name in defined(node)
        if name in DEFINED
    ]
    assert not found, "call them by the field's word"


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    return [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]


def test_no_variable_has_a_name_of_the_old_dialect() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.Name) and node.id in LOCAL)
        or (isinstance(node, ast.arg) and node.arg in LOCAL)
    ]
    assert not found, "call them by the field's word"


def test_locals_are_named_after_what_they_hold() -> None:
    vague = [
        f"{path.relative_to(PACKAGE)}:{name}"
        for room in ROOMS_WITHOUT_VAGUE_NAMES
        for path in (PACKAGE / room).rglob("*.py")
        for name in VAGUE & bound(parsed(path))
    ]
    assert not vague, "name a local after what it holds"


def bound(tree: ast.Module) -> set[str]:
    """Return the names of arguments and variables; fields of classes are left out."""
    names, nodes = set(), list(ast.walk(tree))
    fields = {
        id(getattr(n, "target", n)) for c in nodes if isinstance(c, ast.ClassDef) for n in c.body
    }
    for node in nodes:
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in fields
        ):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names

"""Names that only this repository used do not come back: the field's word stands for each.

Modules, and the classes and functions that modules define at their top, are looked at.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "spsbench"

MODULES = set(
    """
    tape lowering worth trials making laying preparing verdict kept packings origins
    staircase company over_codes coded_tiles own surprises boundary soundness again given
    free alone arms drawn in_turn material reduces outlook chances needed heart meeting
    channel crowd spinning memory_kept disks greeting lacking shelves same trail drive asked
    telling place crew shelf foreign translated skips rungs ladder chosen allowing traced
    traced_of asked_along asking stops outset course known growing unrolled many named
    partial doors orphans patience money dialect
    """.split()  # noqa: SIM905
)
DEFINED = {
    *("Heart", "Company", "Crew", "Team", "Meeting", "Hands", "Shelf", "Staircase", "Told"),
    *("Lesson", "Guess", "Foretold", "Trail", "soundness", "see_off", "patiently"),
}


def test_no_module_has_a_name_of_the_old_dialect():
    found = [
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.stem in MODULES
    ]
    assert not found, "call them by the field's word"


def test_no_class_or_function_has_a_name_of_the_old_dialect():
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in DEFINED
    ]
    assert not found, "call them by the field's word"

"""Every regular expression over text from outside takes time linear in the text.

That holds where no unbounded repeat can give back, and where a search that fails behind one cannot
begin anew inside it. Both are read off the parsed pattern.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from re import _compiler, _parser
from re import _constants as op
from typing import Any, NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "spsbench"
OUR_TEXT = {"cli/main", "reports/plots", "settings/options"}  # docstrings, and figures that we draw
LATER = {  # modules that make a pattern in a function, of escaped names or of a table of ours
    *("heads/families", "heads/head", "serving/address", "tasks/program_texts"),
    "models/tokenizers",  # of a tokenizer.json, which reads an empty text
}
CALLS = {"compile", "search", "match", "fullmatch", "sub", "split", "findall", "finditer"}
UNBOUNDED = op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT
CHARACTERS = [*map(chr, range(256)), "\u0660", "\u2028", "\U0001f600"]


class Pattern(NamedTuple):
    """A pattern of the package, and whether all its uses begin at a given place."""

    where: str
    source: str | bytes
    flags: int
    is_anchored: bool


def patterns() -> Iterator[Pattern]:
    trees = {
        str(path.relative_to(PACKAGE).with_suffix("")): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    methods: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                methods.setdefault(name, set()).add(node.attr)
    for module, tree in trees.items():
        names = {
            node.value: node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if module in OUR_TEXT | {
                "extensions/check/modes",
                "serving/acceptance",
            } or not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func).partition(".")
            if call[0] != "re" or call[2] not in CALLS:
                continue
            uses = methods.get(names.get(node, ""), set()) if call[2] == "compile" else {call[2]}
            try:
                source, *others = [evaluate(part, module) for part in arguments(node)]
            except NameError:
                assert module in LATER, f"{module}:{node.lineno}"
                continue
            flags = sum(value for value in others if isinstance(value, re.RegexFlag))
            where = f"{module}:{node.lineno}"
            yield Pattern(where, source, flags, uses & CALLS <= {"match", "fullmatch"})


def arguments(node: ast.Call) -> list[ast.expr]:
    last = [part for part in node.args[1:] if "re." in ast.unparse(part)]
    return [node.args[0], *last, *(keyword.value for keyword in node.keywords)]


def evaluate(node: ast.expr, module: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    names = vars(importlib.import_module("spsbench." + module.replace("/", ".")))
    return eval(compile(ast.Expression(node), module, "eval"), dict(names))


def can_fail(items: Any) -> bool:
    for code, value in items:
        if code is op.BRANCH:
            if all(map(can_fail, value[1])):
                return True
        elif code is op.SUBPATTERN:
            if can_fail(value[-1]):
                return True
        elif code not in UNBOUNDED or (value[0] > 0 and can_fail(value[2])):
            return True
    return False


def characters(items: Any, *, first: bool = False) -> set[str]:
    """The characters that items may match, or those that they may begin with."""
    found: set[str] = set()
    for code, value in items:
        if code is op.BRANCH:
            found = found.union(*(characters(branch, first=first) for branch in value[1]))
        elif code is op.SUBPATTERN or code in UNBOUNDED:
            found |= characters(value[-1], first=first)
        elif code is op.GROUPREF:
            found |= set(CHARACTERS)
        elif code not in (op.AT, op.ASSERT, op.ASSERT_NOT):
            single = _parser.SubPattern(items.state, [(code, value)])
            test = _compiler.compile(single, items.state.flags)
            is_bytes = isinstance(items.state.str, bytes)
            found |= {
                c
                for c in CHARACTERS
                if test.match(c.encode("latin-1", "replace") if is_bytes else c)
            }
        if first and can_fail([(code, value)]) and code not in (op.AT, op.ASSERT, op.ASSERT_NOT):
            break
    return found


def faults(pattern: Pattern) -> list[str]:
    parsed = _parser.parse(pattern.source, pattern.flags)
    begins, blocked = characters(parsed, first=True), set()
    code, value = parsed[0]
    if (code, value) == (op.AT, op.AT_BEGINNING):
        begins = {"\n"} if parsed.state.flags & re.MULTILINE else set()
        if begins:
            blocked = set(CHARACTERS) - begins
    elif code is op.ASSERT_NOT and value[0] < 0:
        blocked = characters(value[1])
    lines = []

    def walk(items: Any, fails_behind: bool) -> None:
        for at, (code, value) in enumerate(items):
            behind = fails_behind or can_fail(items[at + 1 :])
            if code is op.BRANCH:
                for branch in value[1]:
                    walk(branch, behind)
            elif code is op.SUBPATTERN:
                walk(value[-1], behind)
            elif code in UNBOUNDED:
                if value[1] is op.MAXREPEAT:
                    if code is not op.POSSESSIVE_REPEAT:
                        lines.append("gives back")
                    body = characters(value[2])
                    if behind and not pattern.is_anchored and body - blocked and body & begins:
                        lines.append("is searched again")
                walk(value[2], behind)

    walk(parsed, False)
    return lines


def test_every_pattern_takes_time_linear_in_its_text():
    slow = {pattern.where: faults(pattern) for pattern in patterns()}
    assert len(slow) > 40
    assert not {where: lines for where, lines in slow.items() if lines}


@pytest.mark.parametrize(
    ("source", "is_slow"),
    [
        (r"\d+%", True),
        (r"\d++%", True),
        (r"(?<!\d)\d++%", False),
        (r"^\s*+x", True),
        (r"^[ \t]*+x", False),
        (r"(a|a)*+$", True),
        (r'"(?:[^"\\]|\\.)*+"', True),
        (r'"(?:[^"\\]|\\.)*+"?', False),
    ],
)
def test_a_slow_pattern_is_found(source, is_slow):
    assert bool(faults(Pattern("here", source, re.MULTILINE, False))) == is_slow

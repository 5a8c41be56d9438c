"""Constraints on texts as options: a JSON schema, a regular expression or a Lark grammar.

What a user gives becomes the text that a cell records. `check` asks llguidance whether it can
follow that text, before a model is loaded.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.untrusted import MAX_PATH, FieldError, cut, parse_json, read_text

MAX_DEPTH = 500  # schemas inside each other and behind references; a stack of 8 MiB takes 1,300
MAX_SCHEMAS = 100_000  # each counted once for each reference to it or to one around it
MAX_KEYS = 2_000  # of one object
MAX_PATTERNS = 50  # in the `patternProperties` of one object
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NAMED = ("properties", "patternProperties")  # schemas by name
NO_SCHEMAS = ("const", "enum", "default", "examples", "$defs", "definitions")
MAX_CHARACTERS = 250_000  # characters of a schema, an expression or a grammar
FEW = 300  # characters of a message of the library
WHITESPACE = r"[ \n\r\t]{0,32}"
"""Default of `whitespace_pattern`: a text may be indented, and not be white for ever.

`x-guidance` in a schema overrides it.
"""
KINDS = ("json_schema", "regex", "grammar")
"""Fields of a cell, at most one of which is set."""
WRAPPER = {"name", "description", "strict", "schema"}
"""Keys beside a schema in requests to OpenAI's API."""
ESCAPES = '"\\\\bfnrt'
"""Letters behind a backslash in a JSON text.

Without `u` no key can be written in a second way: `"\\u0061"` would be an `"a"` that the grammar
takes for another key.
"""


def read_schema(value: Any, where: str) -> str:
    """Return a JSON schema as canonical text; the order of its properties stays.

    Args:
        value: a dict, a class of pydantic, the text of a schema, or the name of a file.
        where: the option, for messages.
    """
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if value == "":
        return ""
    if isinstance(value, Mapping):
        text = _dumped(value, where)
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        text = value
    else:
        text, where = _file(value, where), f"{where}: {cut(value, MAX_PATH)}"
    try:
        schema = parse_json(_checked_size(text, where).encode())
    except FieldError as error:
        raise DataError(f"{where}: {error}: expected a JSON schema. Correct it") from error
    if not isinstance(schema, dict):
        raise DataError(
            f"{where} is a JSON {type(schema).__name__}: expected an object, such as "
            '{"type": "object"}'
        )
    if isinstance(schema.get("schema"), dict) and not schema.keys() - WRAPPER:
        raise DataError(
            f"{where} wraps a schema as the response format of OpenAI does: expected the schema "
            "itself. Give what is under its key schema"
        )
    return _checked_size(_dumped(schema, where), where)


def read_regex(value: Any, where: str) -> str:
    """Return a regular expression of limited size."""
    if not isinstance(value, str):
        raise UsageError(f"{where} is a {type(value).__name__}: expected a regular expression")
    return _checked_size(value, where)


def read_grammar(value: Any, where: str) -> str:
    """Return a Lark grammar: that of a file, or a text with the rule `start`."""
    is_text = isinstance(value, str) and re.search(r"^\s*\??start\b[^\n]*:", value, re.MULTILINE)
    if value == "" or is_text:
        return _checked_size(value, where)
    return _checked_size(_file(value, where), f"{where}: {value}")


def kind_of(sampling: Any) -> str | None:
    """Return the field of a cell that constrains its texts; None: none does."""
    return next((name for name in KINDS if getattr(sampling, name)), None)


def check(sampling: Any, where: str = "") -> None:
    """Refuse a constraint that nothing can follow, or one beside options that contradict it.

    Args:
        sampling: a `settings.cell.Cell`.
        where: the place of the constraint, for messages; default: its option.
    """
    named = [name for name in KINDS if getattr(sampling, name)]
    if len(named) > 1:
        raise UsageError(f"`{named[0]}` with `{named[1]}`: expected one of them")
    for name in named:
        check_ends(sampling, where or f"`{name}`")
        check_grammar(name, getattr(sampling, name), where or f"`{name}`")


def check_ends(sampling: Any, where: str) -> None:
    """Refuse other ends of a text beside a constraint, which says itself where a text ends."""
    for name in ("stop", "ignore_eos"):
        if getattr(sampling, name):
            source = ", which the task may bring" if name == "stop" else ""
            raise UsageError(
                f"{where} with `{name}`{source}: expected none with a constraint, which "
                "decides where a text ends. Leave one out"
            )


def check_grammar(kind: str, text: str, where: str) -> None:
    """Refuse a text that llguidance cannot compile, or that no text satisfies."""
    if (problem := _problem(kind, text)) is not None:
        raise DataError(f"{where}: {problem}")


def compiled(kind: str, text: str) -> str:
    """Return a constraint in the words of llguidance.

    Raises:
        MissingError: llguidance is not installed.
        ValueError: the text is none of its kind.
    """
    matcher = library().LLMatcher
    if kind == "regex":
        return str(matcher.grammar_from_regex(text))
    if kind == "grammar":
        return str(matcher.grammar_from_lark(text))
    escapes = ESCAPES + ("u" if r"\u" in text else "")  # a control character of its own
    defaults = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": escapes}
    schema = json.loads(text)
    if schema.get("x-guidance", {}).get("whitespace_flexible") is False:
        del defaults["whitespace_pattern"]  # a pattern would win
    without_equal_enums(schema)
    return str(matcher.grammar_from_json_schema(_dumped(schema, kind), defaults=defaults))


def library() -> Any:
    """Import llguidance."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingError(
            "llguidance is not installed: expected it for texts under a constraint. Install it "
            "with pip install llguidance"
        ) from error
    return llguidance


@lru_cache(maxsize=1024)
def _problem(kind: str, text: str) -> str | None:
    """Return why no text can follow a constraint, in one line with the remedy; None: one can."""
    if kind == "json_schema" and (problem := problem_of(json.loads(text))) is not None:
        return problem
    try:
        failed, lines = library().LLMatcher.validate_grammar_with_warnings(compiled(kind, text))
    except ValueError as error:
        failed, lines = True, [str(error)]
    words = " ".join(" ".join(lines).split())[:FEW]
    remedy = {
        "json_schema": "a schema of keywords that llguidance follows. Change it",
        "regex": "a regular expression as in Rust, without look-around. Change it",
        "grammar": "a grammar in llguidance's dialect of Lark. Change it",
    }[kind]
    if kind == "json_schema" and words.startswith("oneOf"):
        remedy = (
            "branches that exclude each other by a required key with a constant of its own. "
            "Require one in each branch, or use `anyOf`"
        )
    return f"{words}: expected {remedy}" if failed else None


def _dumped(schema: Mapping[str, Any], where: str) -> str:
    try:
        return json.dumps(schema, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON ({error}): expected a JSON schema") from error


def _file(value: Any, where: str) -> str:
    """Return the text of a file of limited size."""
    if not isinstance(value, str | Path):
        raise UsageError(
            f"{where} is a {type(value).__name__}: expected the name of a file, or its text"
        )
    return read_text(value, f"{where} as a file, or its text", 4 * MAX_CHARACTERS)


def _checked_size(text: str, where: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"{where} has more than {MAX_CHARACTERS:,} characters: expected at most as many"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: a lone surrogate at character {error.start}") from error
    return text


def problem_of(schema: Mapping[str, Any]) -> str | None:
    """Return why llguidance could not bound a schema, or would not follow it, with the remedy.

    Its compiler calls itself along nested schemas and references until the stack ends, and compares
    the keys and patterns of an object pair by pair. A grammar writes keys one by one, so it never
    knows that a key comes twice. Nothing here is matched against a pattern.
    """
    if not isinstance(schema.get("x-guidance", {}), Mapping):
        return "x-guidance: expected an object with options of llguidance. Correct it"
    try:
        parts = parts_of(schema)
    except OverflowError as error:
        return f"{error}. Make it simpler"
    return next(filter(None, map(_problem_of_part, parts)), None)


def parts_of(root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas inside a schema and behind its references, itself the first.

    References that point to no part of it are left out.

    Raises:
        OverflowError: it is too deep or too large for llguidance.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}  # by reference, "" for the root
    heights: dict[str, int] = {}
    references: dict[str, set[str]] = {}
    names, size = [""], 0
    while names:
        name = names.pop()
        schema = root if name == "" else pointed(root, name)
        if name in found or schema is None:
            continue
        found[name], heights[name] = _inside(schema)
        size += len(found[name])
        if size > MAX_SCHEMAS:
            raise OverflowError(f"expected at most {MAX_SCHEMAS:,} schemas, references resolved")
        references[name] = {ref for part in found[name] if isinstance(ref := part.get("$ref"), str)}
        names += references[name]
    sorter = TopologicalSorter({name: references[name] & found.keys() for name in found})
    with suppress(CycleError):  # what no cycle is behind is sorted all the same
        sorter.prepare()
    depths: dict[str, int] = {}
    while ready := sorter.get_ready():
        for name in ready:
            below = (depths[other] for other in references[name] & found.keys())
            depths[name] = heights[name] + max(below, default=0)
        sorter.done(*ready)
    # no way through a cycle enters a place twice
    cyclic = sum(heights[name] for name in found.keys() - depths.keys())
    if max(depths.values(), default=0) + cyclic > MAX_DEPTH:
        raise OverflowError(
            f"expected at most {MAX_DEPTH} schemas inside each other and behind `$ref`"
        )
    return [part for parts in found.values() for part in parts]


def _inside(schema: Any) -> tuple[list[Mapping[str, Any]], int]:
    """Return the schemas inside a schema, and the most of them inside each other."""
    parts, height, stack = [], 0, [(schema, 1)]
    while stack:
        part, level = stack.pop()
        inner: Collection[Any] = ()
        if isinstance(part, list):
            inner = part
        elif isinstance(part, Mapping):
            parts.append(part)
            height = max(height, level)
            inner = list(_inner(part))
        stack += [(value, level + 1) for value in inner if isinstance(value, list | Mapping)]
    return parts, height


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values in a schema that may be schemas, or lists of them."""
    for name, value in schema.items():
        if name in NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif name not in NO_SCHEMAS:
            yield value


def _problem_of_part(schema: Mapping[str, Any]) -> str | None:
    required = {str(key) for key in listed(schema.get("required"))}
    patterns = named(schema, "patternProperties")
    for name, count, limit in (
        ("properties", len(named(schema, "properties")), MAX_KEYS),
        ("required", len(required), MAX_KEYS),
        ("patternProperties", len(patterns), MAX_PATTERNS),
    ):
        if count > limit:
            return f"`{name}` has {count:,} keys: expected at most {limit:,}. Make it simpler"
    least = schema.get("minProperties")
    is_open = schema.get("additionalProperties", True) is not False or bool(patterns)
    # of the keys that are not declared one at least is a new one
    if isinstance(least, int) and is_open and least > len(required) + 1:
        return (
            f"minProperties {least}: expected at most one more than the keys that are required, "
            "since a key may come twice in a text, and counts once. Require them by name"
        )
    if (bound := loose_bound(schema)) is not None:
        return (
            f"{bound}, less than 1 away from the other bound: expected no whole number, since "
            "llguidance would allow it. Name the next number that is allowed, as `minimum` or "
            "`maximum`"
        )
    return None


def loose_bound(schema: Mapping[str, Any]) -> str | None:
    """Return a bound that a number may not have, and that llguidance 1.9 allows; None: none."""
    values: dict[str, Any] = {name: schema.get(name) for name in BOUNDS}
    numbers = {n: x for n, x in values.items() if type(x) in (int, float) and abs(x) < 1e300}
    low = [x for name, x in numbers.items() if name.endswith("inimum")]
    high = [x for name, x in numbers.items() if name.endswith("aximum")]
    if not low or not high or min(high) - max(low) >= 1:
        return None
    whole = (name for name in BOUNDS[2:] if name in numbers and numbers[name] % 1 == 0)
    return next((f"{name} {numbers[name]}" for name in whole), None)


def without_equal_enums(schema: Mapping[str, Any]) -> None:
    """Drop each `enum` that only repeats the `const` beside it, in place.

    With both llguidance does not see that the branches of a `oneOf` exclude each other.
    """
    for part in parts_of(schema):
        if "const" in part and part.get("enum") == [part["const"]] and isinstance(part, dict):
            del part["enum"]


def pointed(root: Any, reference: Any) -> Any:
    """Return what a reference within the schema points to; None: another one, or nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place if reference == "#" or reference.startswith("#/") else None


def named(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    """Return the mapping under a keyword; an empty one where there is none."""
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """Return a list as it is; else an empty one."""
    return value if isinstance(value, list) else []

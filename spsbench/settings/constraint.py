"""Constraints on texts as options: a JSON schema, a regular expression or a Lark grammar.

What a user gives becomes the text that a cell records. `check` asks llguidance whether it can
follow that text, before a model is loaded: in a child process, since a small text may fill its
memory, overflow its stack or take it hours.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, UsageError, as_it_is
from spsbench.hardware.child import Child
from spsbench.untrusted import MAX_PATH, FieldError, cut, parse_json, read_text

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NAMED = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
NO_SCHEMAS = ("const", "enum", "default", "examples")
MAX_CHARACTERS = 250_000  # characters of a schema, an expression or a grammar
FEW = 300  # characters of a message of the library
SECONDS = 5  # limit of processor time to compile a constraint
WHITESPACE = r"[ \n\r\t]{0,32}"
"""Default of `whitespace_pattern`: a text may be indented, and not be white for ever.

`x-guidance` in a schema overrides it.
"""
KINDS = ("json_schema", "regex", "grammar")
"""Fields of a cell, at most one of which is set."""
WRAPPER = {"name", "description", "strict", "schema"}
"""Keys around a schema in requests to OpenAI's API."""
ESCAPES = '"\\\\bfnrt'
"""Letters behind a backslash in a JSON text.

Without `u` no key can be written in a second way: `"\\u0061"` would be an `"a"` that the grammar
takes for another key.
"""
GBNF = re.compile(r"^[ \t]*+[\w-]++[ \t]*+::=", re.MULTILINE)
"""The first rule of a grammar for llama.cpp."""
START = re.compile(r"^[ \t]*+\??start(?!\w)[^\n:]*+:", re.MULTILINE)
"""The first rule of a grammar in Lark."""

_child = Child("""
from llguidance import LLMatcher, LLTokenizer
tokenizer = LLTokenizer("byte")
def answer(task):
    matcher = LLMatcher(tokenizer, task["grammar"], log_level=0)
    problem = matcher.get_error() if matcher.is_error() else ""
    matcher.compute_bitmask()
    return {"problem": problem}
""")


def read_schema(value: Any, where: str) -> str:
    """Return a JSON schema as compact text, its properties in their order; "" stays.

    `value` is a dict, a class of pydantic, the text of a schema, or the name of a file. Errors name
    the option `where`. DataError: no schema, one inside a wrapper, or one that is too long.
    UsageError: another type. SpsError: an unreadable file.
    """
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if value == "":
        return ""
    if isinstance(value, Mapping):
        text = _dump_schema(value, where)
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
    return _checked_size(_dump_schema(schema, where), where)


def read_regex(value: Any, where: str) -> str:
    """Return a regular expression as it is; UsageError: no text, DataError: too long, not UTF-8."""
    if not isinstance(value, str):
        raise UsageError(f"{where} is a {type(value).__name__}: expected a regular expression")
    return _checked_size(value, where)


def read_grammar(value: Any, where: str) -> str:
    """Return a Lark grammar: `value` if it is "" or has the rule `start`, else that of its file.

    DataError, with `where`: GBNF or too long; a file without `start` passes. SpsError: unreadable.
    """
    is_text = isinstance(value, str) and (START.search(value) or GBNF.search(value))
    if value != "" and not is_text:
        value, where = _file(value, where), f"{where}: {cut(value, MAX_PATH)}"
    if GBNF.search(value):
        raise DataError(
            f"{where} is GBNF, the notation of llama.cpp (root ::= ...): expected llguidance's "
            'dialect of Lark, such as start: "left" | "right". Translate a file with '
            "python -m llguidance.gbnf_to_lark"
        )
    return _checked_size(value, where)


def constraint_kind(sampling: Any) -> str | None:
    """Return the field of a cell that constrains its texts; None: none does."""
    return next((name for name in KINDS if getattr(sampling, name)), None)


def check_constraint(sampling: Any, where: str = "") -> None:
    """Raise for a constraint that nothing can follow, or one with options that contradict it.

    `sampling` is a `settings.cell.Cell`; without a constraint nothing is checked. `where` is the
    place of the constraint for messages, by default its option. UsageError: two constraints, or
    `stop` or `ignore_eos` with one. DataError: llguidance cannot follow it.
    """
    named = [name for name in KINDS if getattr(sampling, name)]
    if len(named) > 1:
        raise UsageError(f"`{named[0]}` with `{named[1]}`: expected one of them")
    for name in named:
        check_ends(sampling, where or f"`{name}`")
        check_grammar(name, getattr(sampling, name), where or f"`{name}`")


def check_ends(sampling: Any, where: str) -> None:
    """Raise UsageError for `stop` or `ignore_eos` with a constraint, which ends texts itself."""
    for name in ("stop", "ignore_eos"):
        if getattr(sampling, name):
            source = ", which the task may bring" if name == "stop" else ""
            raise UsageError(
                f"{where} with `{name}`{source}: expected none with a constraint, which "
                "decides where a text ends. Leave one out"
            )


def check_grammar(kind: str, text: str, where: str) -> None:
    """Raise DataError for a constraint that llguidance cannot compile, or no text satisfies."""
    if (problem := _problem(kind, text)) is not None:
        raise DataError(f"{where}: {problem}")


def to_llguidance(kind: str, text: str) -> str:
    """Return a constraint of a kind in `KINDS` as llguidance's grammar, not compiled.

    A JSON schema gets `WHITESPACE` (not where it says `whitespace_flexible` false) and `ESCAPES`,
    and loses `enum` where it repeats `const` alone. ValueError: no JSON. MissingError: no library.
    """
    matcher = import_llguidance().LLMatcher
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
    return str(matcher.grammar_from_json_schema(_dump_schema(schema, kind), defaults=defaults))


def import_llguidance() -> Any:
    """Return llguidance; MissingError: it is not installed."""
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
    """Return why no text can follow a constraint, in one line with the remedy; None: one can.

    What a child process cannot compile in `SECONDS` is one reason. MissingError: no llguidance.
    """
    if kind == "json_schema" and (problem := problem_of(json.loads(text))) is not None:
        return problem
    try:
        answer = _child.ask(
            {"grammar": to_llguidance(kind, text)}, SECONDS, "compiling the grammar"
        )
    except ValueError as error:
        answer = {"problem": str(error)}
    if "error" in answer:
        return f"{answer['error']}: expected one that llguidance can compile. Make it simpler"
    words = " ".join(str(answer["problem"]).partition("<state>")[0].split())
    words = as_it_is(words[:FEW])
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
    return f"{words}: expected {remedy}" if words else None


def _dump_schema(schema: Mapping[str, Any], where: str) -> str:
    try:
        return json.dumps(schema, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON ({error}): expected a JSON schema") from error


def _file(value: Any, where: str) -> str:
    """Return a file's text; UsageError: `value` is no name. SpsError: unreadable or too large."""
    if not isinstance(value, str | Path):
        raise UsageError(
            f"{where} is a {type(value).__name__}: expected the name of a file, or its text"
        )
    return read_text(value, f"{where} as a file, or its text", 4 * MAX_CHARACTERS)


def _checked_size(text: str, where: str) -> str:
    """Return `text`; DataError: more than `MAX_CHARACTERS` characters, or a lone surrogate."""
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
    """Return what llguidance would accept and not follow in a schema, with the remedy, or None.

    Every part of the schema is checked (`_problem_of_part`), and that `x-guidance` is an object.
    """
    if not isinstance(schema.get("x-guidance", {}), Mapping):
        return "x-guidance: expected an object with options of llguidance. Correct it"
    return next(filter(None, map(_problem_of_part, schemas_in(schema))), None)


def schemas_in(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `root` and objects in it, of maps in `NAMED` the values alone, none in `NO_SCHEMAS`."""
    stack: list[Any] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, Mapping):
            yield part
            for name, value in part.items():
                if name in NAMED and isinstance(value, Mapping):
                    stack += value.values()
                elif name not in NO_SCHEMAS:
                    stack.append(value)


def _problem_of_part(schema: Mapping[str, Any]) -> str | None:
    """Return what llguidance would accept in one object and not follow, with the remedy, or None.

    That is a `minProperties` that could be met by keys which come twice, and a `loose_bound`.
    """
    keys = schema.get("required")
    required = set(map(str, keys)) if isinstance(keys, list) else set()
    least, patterns = schema.get("minProperties"), schema.get("patternProperties")
    is_open = schema.get("additionalProperties", True) is not False or bool(patterns)
    # one at least of the keys that are not declared is a new one
    if isinstance(least, int) and is_open and least > len(required) + 1:
        return (
            f"minProperties {least}: expected at most one more than the keys that are required, "
            "since a key may come twice in a text, and counts once. Require them by name"
        )
    if (bound := loose_bound(schema)) is not None:
        return (
            f"{bound}, less than 1 away from the other bound: expected no whole number, since "
            "llguidance would allow it. Name the next number that is allowed, as minimum or "
            "maximum"
        )
    return None


def loose_bound(schema: Mapping[str, Any]) -> str | None:
    """Return `NAME VALUE` of a whole exclusive bound less than 1 from the other bound, or None."""
    values: dict[str, Any] = {name: schema.get(name) for name in BOUNDS}
    numbers = {n: x for n, x in values.items() if type(x) in (int, float) and abs(x) < 1e300}
    low = [x for name, x in numbers.items() if name.endswith("inimum")]
    high = [x for name, x in numbers.items() if name.endswith("aximum")]
    if not low or not high or min(high) - max(low) >= 1:
        return None
    whole = (name for name in BOUNDS[2:] if name in numbers and numbers[name] % 1 == 0)
    return next((f"{name} {numbers[name]}" for name in whole), None)


def without_equal_enums(schema: Mapping[str, Any]) -> None:
    """Drop each `enum` that only repeats the `const` beside it, in all parts of `schema`, in place.

    With both llguidance does not see that the branches of a `oneOf` exclude each other.
    """
    for part in schemas_in(schema):
        if "const" in part and part.get("enum") == [part["const"]] and isinstance(part, dict):
            del part["enum"]

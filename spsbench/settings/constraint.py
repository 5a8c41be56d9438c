"""Constraints on texts as options: a JSON schema, a regular expression or a Lark grammar.

What a user gives becomes the text that a cell records. `check` asks llguidance whether it can
follow that text, before a model is loaded.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.foreign import MAX_PATH, FieldError, cut, parse_json, read_text
from spsbench.settings.json_schema import optional_tag, problem_of, without_equal_enums

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

    Raises:
        SpsError: it is no JSON object, too large, or the file cannot be read.
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
    """Return a regular expression of limited size.

    Raises:
        SpsError: it is no text, or too large.
    """
    if not isinstance(value, str):
        raise UsageError(f"{where} is a {type(value).__name__}: expected a regular expression")
    return _checked_size(value, where)


def read_grammar(value: Any, where: str) -> str:
    """Return a Lark grammar: that of a file, or a text with the rule `start`.

    Raises:
        SpsError: it is too large, or the file cannot be read.
    """
    is_text = isinstance(value, str) and re.search(r"^\s*\??start\b[^\n]*:", value, re.MULTILINE)
    if value == "" or is_text:
        return _checked_size(value, where)
    return _checked_size(_file(value, where), f"{where}: {value}")


def kind_of(sampling: Any) -> str | None:
    """Return the field of a cell that constrains its texts; None: none does."""
    return next((name for name in KINDS if getattr(sampling, name)), None)


def marked(kind: str) -> str:
    """Return the field of a kind of constraint, as messages name it."""
    return f"`{kind}`"


def check(sampling: Any, where: str = "") -> None:
    """Refuse a constraint that nothing can follow, or one beside options that contradict it.

    Args:
        sampling: a `settings.cell.Cell`.
        where: the place of the constraint, for messages; default: its option.

    Raises:
        SpsError: in the words of llguidance.
    """
    named = [name for name in KINDS if getattr(sampling, name)]
    if len(named) > 1:
        raise UsageError(f"{' with '.join(map(marked, named))}: expected one of them")
    for name in named:
        check_ends(sampling, where or marked(name))
        check_grammar(name, getattr(sampling, name), where or marked(name))


def check_ends(sampling: Any, where: str) -> None:
    """Refuse other ends of a text beside a constraint, which says itself where a text ends.

    Raises:
        UsageError: stop strings, or `ignore_eos`.
    """
    for name in ("stop", "ignore_eos"):
        if getattr(sampling, name):
            source = ", which the task may bring" if name == "stop" else ""
            raise UsageError(
                f"{where} with {marked(name)}{source}: expected none beside a constraint, which "
                "says itself where a text ends. Leave one out"
            )


def check_grammar(kind: str, text: str, where: str) -> None:
    """Refuse a text that llguidance cannot compile, or that no text satisfies.

    Raises:
        SpsError: in its words; or it is not installed.
    """
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
    """Import llguidance.

    Raises:
        MissingError: it is not installed.
    """
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
        key = optional_tag(json.loads(text))
        remedy = (
            "branches that exclude each other by a required key with a constant of its own. "
            + (f"Require {key!r} in each branch" if key else "Add one, or use `anyOf`")
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

"""Fields of an answer, each checked where it is read: a wrong one is told by name and value.

A field that is missing or null is None, since versions of engines differ in what they write.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MAX_COUNT = 2**53  # least count that a float does not hold
MAX_ID = 2**31  # least number too large for a token id
MAX_NAME = 512  # characters of a model's name
SHOWN = 60  # characters of a value or a name in a line


SCHEMA_ERRORS = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""Errors that reading a value of an unexpected form raises."""


class FieldError(ValueError):
    """A field of another type than the schema's."""


class RangeError(FieldError):
    """A number that cannot be true."""


def cut(value: object, most: int = SHOWN) -> str:
    """Return a value as text in one line, cut to `most` characters."""
    words = value[: 4 * most] if isinstance(value, str) else _repr(value)
    text = "".join(map(_printable, " ".join(words.split())))
    return text if len(text) <= most else f"{text[:most]}..."


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _repr(value: object) -> str:
    try:
        return repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        return f"a {type(value).__name__}"


def listed_names(names: Sequence[str], most: int = 10) -> str:
    """Return names for a line: the first ones, cut, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(cut(name) for name in names[:most]) + more


def whole(value: Any, name: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` and below `most`.

    Raises:
        FieldError: no whole number, or one out of range.
    """
    if type(value) is float and value.is_integer() and abs(value) < MAX_COUNT:
        value = int(value)
    if type(value) is float and not math.isfinite(value):
        raise RangeError(f"{name}: {value}, expected a whole number")
    if type(value) is not int:
        raise FieldError(f"{name}: {cut(value)}, expected a whole number")
    if not least <= value < most:
        value_text = str(value) if abs(value) < 10**20 else "a number of many digits"
        raise RangeError(f"{name}: {value_text}, expected a whole number of {least} to {most - 1}")
    return value


def real(value: Any, name: str) -> float:
    """Return a finite number.

    Raises:
        FieldError: another value.
    """
    if type(value) not in (int, float):
        raise FieldError(f"{name}: {cut(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise RangeError(f"{name}: a number of many digits, expected a smaller one") from error
    if not math.isfinite(number):
        raise RangeError(f"{name}: {number}, expected a finite number")
    return number


def logprob(value: Any, name: str) -> float:
    """Return the logarithm of a probability: a finite number, or minus infinity.

    Raises:
        FieldError: another value.
    """
    return value if value == -math.inf else real(value, name)


def text(value: Any, name: str) -> str:
    """Return a text.

    Raises:
        FieldError: another value.
    """
    if not isinstance(value, str):
        raise FieldError(f"{name}: {cut(value)}, expected text")
    return value


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """Return an object; an empty one for null.

    Raises:
        FieldError: another value.
    """
    if not isinstance(value, dict | None):
        raise FieldError(f"{name}: {cut(value)}, expected an object")
    return value or {}


def sequence(value: Any, name: str) -> Sequence[Any]:
    """Return a list; an empty one for null.

    Raises:
        FieldError: another value.
    """
    if not isinstance(value, list | None):
        raise FieldError(f"{name}: {cut(value)}, expected a list")
    return value or ()


def token_ids(value: Any, name: str) -> list[int]:
    """Return a list of token ids; an empty one for null."""
    return [whole(token, name, most=MAX_ID) for token in sequence(value, name)]


def optional(read: Callable[[Any, str], T], values: Mapping[str, Any], name: str) -> T | None:
    """Return a field by `read`; None if it is missing or null."""
    value = values.get(name)
    return None if value is None else read(value, name)

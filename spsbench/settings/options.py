"""Options: fields of records that are flags, TOML keys and Python keywords at once.

A record declares an `Option` in the annotation of a field. `options_of` lists them, `take_record`
makes a record of what a user gives, `parse_range` reads `1..8`.
"""

import inspect
import math
import re
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from spsbench.errors import UsageError, did_you_mean, replace_fields
from spsbench.sources import fixed
from spsbench.spec import Spec

Record = TypeVar("Record")

MODELS, METHOD, SAMPLING = "Models", "Method", "Sampling"
WORK, SIZE, RUN, AUDIT, MACHINE = "Task", "Size", "Run", "Audit", "Machine"
SERVER = "Server"
LONGEST_NAME = 60  # characters in a message
MAX_NUMBERS = 10_000  # of one range
TERM = re.compile(r"(\d+)(?:\.\.(\d+)(?:\.\.(\d+))?)?")  # 4, 1..8 or 1..9..2


class Check(NamedTuple):
    """A condition on a value."""

    holds: Callable[[Any], bool]
    expected: str  # in words


class Option(NamedTuple):
    """Declares a field as an option: `temperature: Annotated[float, Option(...)] = 1.0`.

    The field gives the name, the type and the default, the `Args:` of its record's docstring the
    help; this gives the rest. `{model}` in the help of a model's field becomes the target, or the
    draft model.
    """

    group: str
    check: Check | None = None
    flags: tuple[str, ...] = ()  # beside --name-of-the-field
    metavar: str | None = None
    default_text: str | None = None  # the default in words
    parse: Callable[[Any, str], Any] | None = None  # (what is given, its name) -> value, or None
    help: str = ""


def flag_of(name: str) -> str:
    """Return the name of an option on the command line."""
    return "--" + name.replace("_", "-")


def at_least(low: int) -> Check:
    """Return the check for a finite number of `low` or more."""
    return Check(lambda value: math.isfinite(value) and value >= low, f"{low} or more")


def between(low: float, high: float, expected: str = "") -> Check:
    """Return the check for `low` to `high`, both included."""
    return Check(lambda value: low <= value <= high, expected or f"{low}..{high}")


def one_of(*values: str) -> Check:
    """Return the check for one of some words."""
    return Check(lambda value: value in values, " or ".join(values))


@dataclass(frozen=True, slots=True)
class Setting:
    """One option: its name, type, default and checks."""

    name: str
    option: Option
    kind: Any  # str, int, float, bool, Path, Spec, tuple, or a Literal
    default: Any = None
    field: str = ""  # of its record

    @property
    def flag(self) -> str:
        """Return the name on the command line."""
        return flag_of(self.name)

    def convert(self, value: Any, where: str = "") -> Any:
        """Check `value` and convert it to the type of the setting.

        Raises:
            UsageError: it is of another type, or out of range; says the field, or `where`.
        """
        where = where or f"`{self.name}`"
        if self.option.parse is not None:
            value = self.option.parse(value, where)
        if value is None:
            return None
        typed, check = _typed(value, self.kind, where), self.option.check
        for one in typed if isinstance(typed, tuple) else (typed,):
            if check is not None and not check.holds(one):
                value_text = one if str(one) else repr(one)
                raise UsageError(f"{where} is {value_text}: expected {check.expected}")
        return typed

    def convert_each(self, value: Any, where: str = "") -> tuple[Any, ...]:
        """Return each value of a list in its type; a list of texts is one value."""
        is_list = self.kind is not tuple and isinstance(value, list | tuple)
        return tuple(self.convert(one, where) for one in (value if is_list else [value]))


def settings_of(record: type[Any]) -> Iterator[Setting]:
    """Yield the options that the fields of a record declare."""
    hints, helps = get_type_hints(record, include_extras=True), _helps(record)
    for field in fields(record):
        if get_origin(hints[field.name]) is Annotated:
            kind, option = get_args(hints[field.name])
            option = option if option.help else option._replace(help=helps.get(field.name, ""))
            default = None if field.default is MISSING else field.default
            yield Setting(field.name, option, _bare(kind), default, field.name)


def _helps(record: type[Any]) -> dict[str, str]:
    """Return field -> help, from the `Args:` of the docstrings of a record and its bases."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        section = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nArgs:\n")[2]
        entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def options_of(record: type[Any]) -> Mapping[str, Setting]:
    """Return name -> setting, of a record."""
    return {setting.name: setting for setting in settings_of(record)}


def take_record(record: type[Record], options: dict[str, Any]) -> Record:
    """Make a record from its options, and remove them from `options`.

    Raises:
        UsageError: a value of another type or out of range.
    """
    settings = options_of(record)
    return record(**convert_options(settings, take_options(options, settings)))


def take_options(options: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    """Remove the known options from `options` and return them."""
    return {name: options.pop(name) for name in list(options) if name in names}


def convert_options(settings: Mapping[str, Setting], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check each value and convert it to its type; None counts as not given.

    Raises:
        UsageError: an unknown name, or a value of another type or out of range.
    """
    for name in sorted(options.keys() - settings.keys()):
        meant = did_you_mean(name, settings)
        raise UsageError(
            f"unknown option {name[:LONGEST_NAME]}: expected one of {', '.join(settings)}.{meant}"
        )
    return {
        name: settings[name].convert(value) for name, value in options.items() if value is not None
    }


@contextmanager
def located(where: str) -> Iterator[None]:
    """Name the file in whose values an error is; what the error names are then its keys."""
    try:
        yield
    except UsageError as error:
        if not where or str(error).startswith(where):
            raise
        keys = replace_fields(str(error), lambda field: field)
        raise type(error)(f"{where}: {keys}") from error


def _bare(kind: Any) -> Any:
    """Return `float` for `float | None`, `tuple` for `tuple[str, ...]`."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return tuple if kind == tuple[str, ...] else kind


def ranges(value: Any, name: str) -> str:
    """Return numbers and ranges as in a flag: `2,4` for `[2, 4]`, `4` for 4.

    Raises:
        UsageError: something else, or no number at all.
    """
    listed = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, str | Integral):
            raise UsageError(
                f'{name} is {value!r}: expected numbers or ranges, such as 4, "1..8" or [2, 4]'
            )
    if not listed:
        raise UsageError(f"{name} is empty: expected at least one number. Give one")
    return ",".join(map(str, listed))


def number_or(word: str) -> Callable[[Any, str], Any]:
    """Return what reads a number, also as a word of a command line; `word` is as not given."""

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, str) or value == word:
            return None if value == word else value
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise UsageError(f"{name} is {value!r}: expected a number, or {word}")
        return int(value)

    return read


def _typed(value: Any, kind: Any, where: str) -> Any:
    if kind is Spec:
        return fixed(value if isinstance(value, Spec) else _spec(value, where))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            expected = " or ".join(map(str, get_args(kind)))
            raise UsageError(f"{where} is {value!r}: expected {expected}")
        return value
    if kind is tuple:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(i, str) for i in listed):
            raise UsageError(f"{where} is {value!r}: expected text or a list of texts")
        return tuple(listed)
    if kind == tuple[int, ...]:  # as `numbers` reads them
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and type(value) is int:
        return str(value)
    if kind in (str, Path) and isinstance(value, str | Path):
        return kind(value)
    if type(value) is not kind:
        raise UsageError(f"{where} is {value!r}: expected {kind.__name__}")
    return value


def _spec(value: Any, where: str) -> Spec:
    try:
        return Spec.parse(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{where} {error}") from error


def words(value: Any, name: str) -> Any:
    """Return the words of a list; those of one text may be parted by commas."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [part for word in listed for part in (word.split(",") if type(word) is str else [word])]


def numbers(low: int, high: int) -> Callable[[Any, str], tuple[int, ...]]:
    """Return what reads numbers and ranges, each number once: 4, `1..8`, `1..9..2` or [2, 4]."""

    def read(value: Any, name: str) -> tuple[int, ...]:
        try:
            return tuple(parse_range(ranges(value, name), low=low, high=high))
        except ValueError as error:
            raise UsageError(f"{name} {error}") from error

    return read


def parse_range(text: str, *, low: int, high: int) -> list[int]:
    """Return the numbers of `text` in its order, each once: `4`, `1..8` with both ends, `0,1..3`.

    `a..b..s` takes every s-th. Terms are parted by commas.

    Raises:
        ValueError: something else, a range that runs backwards, a number not in low..high, or
            more than `MAX_NUMBERS` numbers.
    """
    return list(dict.fromkeys(_numbers(text, low, high)))


def _numbers(text: str, low: int, high: int) -> Iterator[int]:
    left = MAX_NUMBERS
    for term in text.replace(" ", "").split(","):
        match = TERM.fullmatch(term)
        if match is None:
            raise ValueError(
                f"{text!r}: expected numbers and ranges such as 4 or 1..8, got {term!r}"
            )
        first = int(match[1])
        last = int(match[2] or first)
        step = int(match[3] or 1)
        if last < first or step == 0:
            raise ValueError(f"{text!r}: {term} is empty: expected first <= last and a step >= 1")
        if first < low or last > high:
            raise ValueError(f"{text!r}: {term} is outside {low}..{high}")
        named = (last - first) // step + 1
        if named > left:
            raise ValueError(f"{text!r} names {named:,} numbers: expected at most {MAX_NUMBERS:,}")
        left -= named
        yield from range(first, last + 1, step)

"""Options: fields of records that are flags, TOML keys and Python keywords at once.

A record declares an `Option` in the annotation of a field. `options_of` lists them, and `parse`
makes records of what a user gives, on the command line, in a file or in Python.
"""

import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from spsbench.errors import UsageError, did_you_mean, replace_fields
from spsbench.plugins import fix_spec
from spsbench.spec import Spec

MODELS, METHOD, SAMPLING = "Models", "Method", "Sampling"
WORK, SIZE, RUN, AUDIT, MACHINE = "Task", "Size", "Run", "Audit", "Machine"
SERVER = "Server"
LONGEST_NAME = 60  # characters in a message
MAX_NUMBERS = 10_000  # numbers of one option
Call = TypeVar("Call", bound=Callable[..., Any])
TERM = re.compile(r"(\d{1,20})(?:\.\.(\d{1,20})(?:\.\.(\d{1,20}))?)?")  # 4, 1..8 or 1..9..2


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
    flags: tuple[str, ...] = ()  # besides --name-of-the-field
    metavar: str | None = None
    default_text: str | None = None  # the default in words
    parse: Callable[[Any, str], Any] | None = None  # (what is given, its name) -> value, or None
    help: str = ""


def is_given(value: Any) -> bool:
    """Return whether an option was given: 0 counts, and None, False and empty lists do not."""
    return value is not None and value is not False and value not in ([], ())


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
class OptionSpec:
    """One option: its name, type, default and checks."""

    name: str
    option: Option
    kind: Any  # str, int, float, bool, Path, Spec, tuple, or tuple[int, ...]
    default: Any = None
    many: bool = False  # may be given several times

    def convert(self, value: Any, where: str = "") -> Any:
        """Return `value` parsed, typed and checked; UsageError, with `where` first: a wrong value.

        Each item of a tuple is checked. None, given or parsed, stays. `where` is the option if "".
        """
        where = where or f"`{self.name}`"
        if self.option.parse is not None:
            value = self.option.parse(value, where)
        if value is None:
            return None
        typed, check = _to_type(value, self.kind, where), self.option.check
        for one in typed if isinstance(typed, tuple) else (typed,):
            if check is not None and not check.holds(one):
                value_text = one if str(one) else repr(one)
                raise UsageError(f"{where} is {value_text}: expected {check.expected}")
        return typed

    def convert_each(self, value: Any) -> tuple[Any, ...]:
        """Return an axis's converted values: a list's, with `many`, else the one that is given."""
        if self.kind == tuple[int, ...]:
            return self.convert(value)  # type: ignore[no-any-return]
        values = value if self.many and isinstance(value, list | tuple) else [value]
        return tuple(map(self.convert, values))


def options_of(*records: Any) -> Mapping[str, OptionSpec]:
    """Return name -> setting, of records; a name that several declare is the first one's."""
    settings: dict[str, OptionSpec] = {}
    for record in records:
        settings |= {n: s for n, s in _options(record).items() if n not in settings}
    return settings


@cache
def _options(record: Any) -> Mapping[str, OptionSpec]:
    """Map names to settings: a record's fields that have an option, then those of its `AXES`."""
    hints, helps = get_type_hints(record, include_extras=True), _helps(record)
    settings: dict[str, OptionSpec] = {}
    for field in fields(record):
        if get_origin(hints[field.name]) is Annotated:
            kind, option = get_args(hints[field.name])
            option = option if option.help else option._replace(help=helps.get(field.name, ""))
            default = None if field.default is MISSING else field.default
            settings[field.name] = OptionSpec(field.name, option, _bare(kind), default)
    axes: Mapping[str, OptionSpec] = getattr(record, "AXES", {})
    return settings | {name: s for name, s in axes.items() if name not in settings}


def _helps(record: type[Any]) -> dict[str, str]:
    """Return field -> help, from the `Args:` of the docstrings of a record and its bases."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        section = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nArgs:\n")[2]
        entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def takes(*records: Any) -> Callable[[Call], Call]:
    """Declare the records of a call's `**options`, so that `help` and notebooks list each of them.

    The decorated function has them in its `__signature__`, after its own parameters, and as
    `options`, from which the stub of the package is made. A parameter hides an option of its name.
    """

    def declare(function: Call) -> Call:
        """Replace `**options` in the function's signature by the options; return the function."""
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        hidden = {parameter.name for parameter in parameters}
        options = {n: s for n, s in options_of(*records).items() if n not in hidden}
        listed = [
            inspect.Parameter(
                n, inspect.Parameter.KEYWORD_ONLY, default=s.default, annotation=s.kind
            )
            for n, s in options.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*parameters, *listed])
        vars(function)["options"] = options
        return function

    return declare


def parse(options: Mapping[str, Any], *records: Any, where: str = "") -> tuple[Any, ...]:
    """Make each record of its options; a name that several declare is the first one's.

    `options` are flags, keywords or keys of a file by name; None counts as not given. Those of a
    record's `AXES` become its `axes`, name -> values. UsageError, which names the file `where`: an
    unknown name, or a value that an option or a record refuses.
    """
    remaining = {n.replace("-", "_"): value for n, value in options.items() if value is not None}
    parsed = []
    with name_file(where):
        for record in records:
            settings, axes = _options(record), getattr(record, "AXES", {})
            values = {name: remaining.pop(name) for name in [*remaining] if name in settings}
            fixed = {n: settings[n].convert(v) for n, v in values.items() if n not in axes}
            if axes:
                others = {n: v for n, v in values.items() if n not in fixed}
                fixed["axes"] = {n: axes[n].convert_each(v) for n, v in others.items()}
            parsed.append(record(**fixed))
        for name in sorted(remaining):
            names = options_of(*records)
            raise UsageError(
                f"unknown option {name[:LONGEST_NAME]}: expected one of {', '.join(names)}."
                f"{did_you_mean(name, names)}"
            )
    return tuple(parsed)


@contextmanager
def name_file(where: str) -> Iterator[None]:
    """Let a UsageError of this block begin with `where`, unless "", and name options as keys."""
    try:
        yield
    except UsageError as error:
        if not where or str(error).startswith(where):
            raise
        keys = replace_fields(str(error), lambda field: field)
        raise type(error)(f"{where}: {keys}") from error


def _bare(kind: Any) -> Any:
    """Return `float` for `float | None`, `tuple` for `tuple[str, ...]`."""
    if get_origin(kind) is types.UnionType:
        kind = next(one for one in get_args(kind) if one is not type(None))
    return tuple if kind == tuple[str, ...] else kind


def _to_type(value: Any, kind: Any, where: str) -> Any:
    """Return `value` in the type `kind`; UsageError, which begins with `where`: it is of another.

    Only an int becomes a float or a text, and a text a `Spec`, a path or the one item of a tuple.
    """
    if kind is Spec:
        try:
            return fix_spec(value if isinstance(value, Spec) else Spec.parse(value))
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{where} {error}") from error
    if kind is tuple:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(i, str) for i in listed):
            raise UsageError(f"{where} is {value!r}: expected text or a list of texts")
        return tuple(listed)
    if kind == tuple[int, ...]:  # as `reads_numbers` reads them
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


def words(value: Any, name: str) -> Any:
    """Return a list of the words of a text or texts, parted by commas; other values are items."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [part for word in listed for part in (word.split(",") if type(word) is str else [word])]


def reads_numbers(low: int, high: int) -> Callable[[Any, str], tuple[int, ...]]:
    """Return a function that reads numbers and ranges in their order, each number once.

    4, `1..8` with both ends, `1..9..2` for every second, `2,4` or [2, 4]. UsageError for anything
    else: a range that runs backwards, a number not in low..high, more than `MAX_NUMBERS` numbers.
    """

    def read(value: Any, name: str) -> tuple[int, ...]:
        """Return the numbers of a text, a number or a list; UsageError, with `name`: others."""
        is_one = isinstance(value, str) or not isinstance(value, Iterable)
        terms = [value] if is_one else list(value)
        for term in terms:
            if isinstance(term, bool) or not isinstance(term, str | Integral):
                raise UsageError(
                    f'{name} is {value!r}: expected numbers or ranges, such as 4, "1..8" or [2, 4]'
                )
        if not terms:
            raise UsageError(f"{name} is empty: expected at least one number. Give one")
        text, numbers = ",".join(map(str, terms)), list[int]()
        where = f"{name} {text[:LONGEST_NAME]!r}"
        for term in text.replace(" ", "").split(","):
            match = TERM.fullmatch(term)
            if match is None:
                wrong = repr(term[:LONGEST_NAME])
                raise UsageError(
                    f"{where}: expected numbers and ranges such as 4 or 1..8, got {wrong}"
                )
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if last < first or step == 0:
                raise UsageError(
                    f"{where}: {term} is empty: expected first <= last and a step >= 1"
                )
            if first < low or last > high:
                raise UsageError(f"{where}: {term} is outside {low}..{high}")
            count = len(numbers) + (last - first) // step + 1
            if count > MAX_NUMBERS:
                raise UsageError(
                    f"{where} names {count:,} numbers: expected at most {MAX_NUMBERS:,}"
                )
            numbers += range(first, last + 1, step)
        return tuple(dict.fromkeys(numbers))

    return read

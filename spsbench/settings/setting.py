"""One option with its name, its type and its default, made of a field of a record."""

import re
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spsbench.errors import UsageError
from spsbench.settings.option import Option
from spsbench.sources import fixed
from spsbench.spec import Spec

FEW = 60  # characters of a name in a message


@dataclass(frozen=True, slots=True)
class Setting:
    """One option: its name everywhere, and what it may be."""

    name: str
    option: Option
    kind: Any  # str, int, float, bool, Path, Spec, tuple, or a Literal
    default: Any = None
    field: str = ""  # of its record

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return "--" + self.name.replace("_", "-")

    def fitted(self, value: Any, where: str = "") -> Any:
        """`value` in the setting's type and range.

        Raises:
            UsageError: it is of another type, or out of range; says the flag, or `where`.
        """
        where = where or self.flag
        check, word = self.option.check, self.option.none
        if word:
            if value == word:
                return None
            value = _number(value, f"{where} is {value!r}: expected a number, or {word}")
        if self.option.ranges:
            value = _range(value, where)
        typed = _typed(value, self.kind, where)
        for one in typed if isinstance(typed, tuple) else (typed,):
            if check is not None and not check.holds(one):
                shown = one if str(one) else repr(one)
                raise UsageError(f"{where} is {shown}: expected {check.expected}")
        return typed


def settings_of(record: type[Any]) -> Iterator[Setting]:
    """The options that the fields of a record declare."""
    hints = get_type_hints(record, include_extras=True)
    for each in fields(record):
        if get_origin(hints[each.name]) is Annotated:
            kind, option = get_args(hints[each.name])
            default = None if each.default is MISSING else each.default
            yield Setting(each.name, option, _bare(kind), default, each.name)


def taken(asked: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Those of `asked` that are known, taken out of it."""
    return {name: asked.pop(name) for name in list(asked) if name in known}


def fitted(known: Mapping[str, Setting], asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was really asked, each value in its type and range; None is as if left out.

    Raises:
        UsageError: an unknown name, or a value of another type or out of range.
    """
    for name in sorted(asked.keys() - known.keys()):
        near = get_close_matches(name, known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"unknown option {name[:FEW]}: expected one of {', '.join(known)}.{meant}")
    return {name: known[name].fitted(value) for name, value in asked.items() if value is not None}


def _bare(kind: Any) -> Any:
    """`float` of `float | None`, `tuple` of `tuple[str, ...]`."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return tuple if get_origin(kind) is tuple else kind


def _range(value: Any, where: str) -> str:
    """`2,4` of `[2, 4]`, and `4` of 4: numbers and ranges as they are written in a flag.

    Raises:
        UsageError: something else, or no number at all.
    """
    listed = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, str | Integral):
            raise UsageError(
                f'{where} is {value!r}: expected numbers or ranges, such as 4, "1..8" or [2, 4]'
            )
    if not listed:
        raise UsageError(f"{where} is empty: expected at least one number. Give one")
    return ",".join(map(str, listed))


def _number(value: Any, refusal: str) -> Any:
    """What a word stands for that may be a number, as it comes from a command line."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        raise UsageError(refusal)
    return int(value)


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

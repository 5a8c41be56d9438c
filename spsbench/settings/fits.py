"""Whether a record that was read back has values of the types that its fields declare."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from spsbench.spec import Scalar

FEW = 40  # characters of a value in a message


def check_types(record: Any) -> None:
    """Check each field of a dataclass, and of those in it, against its annotation.

    Raises:
        TypeError: one has a value of another type; says which.
    """
    for name, hint in _hints(type(record)).items():
        value = getattr(record, name)
        if not _fits(value, hint):
            raise TypeError(f"{name} is {repr(value)[:FEW]}")
        if is_dataclass(value):
            check_types(value)


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    origin, inside = get_origin(hint), get_args(hint)
    if hint == Scalar:
        return isinstance(value, str | int | float | bool)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inside)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inside[1:] == (...,):
            return all(_fits(each, inside[0]) for each in value)
        return len(value) == len(inside) and all(map(_fits, value, inside))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))

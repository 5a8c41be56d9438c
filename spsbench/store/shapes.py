"""The shape of JSON that is read back: what must be a text, a number, a list, an object."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FEW = 40  # characters of a value in a message
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Is:
    """A plain value; `pattern` is for text, `least` for numbers."""

    kind: type
    pattern: str = ""
    least: float | None = None
    null: bool = False

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if value is None and self.null:
            return None
        kinds = (int, float) if self.kind is float else self.kind
        fits = isinstance(value, kinds) and (self.kind is bool or not isinstance(value, bool))
        expected = WORDS[self.kind]
        if fits and self.pattern:
            fits, expected = re.fullmatch(self.pattern, value) is not None, f"{self.pattern!r}"
        if fits and self.least is not None:
            fits, expected = value >= self.least, f"{self.least:g} or more"
        return None if fits else said(where, value, expected)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one shape."""

    each: "Shape"

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if not isinstance(value, list):
            return said(where, value, "a list")
        told = (self.each.wrong(one, f"{where}[{at}]") for at, one in enumerate(value))
        return next(filter(None, told), None)


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object; those of its fields that are named have a shape, `each` is that of all others."""

    fields: Mapping[str, "Shape"] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    each: "Shape | None" = None
    null: bool = False

    def wrong(self, value: Any, where: str) -> str | None:
        """What is wrong with `value`, in words; None: nothing."""
        if value is None and self.null:
            return None
        if not isinstance(value, dict):
            return said(where, value, "an object")
        if lacking := [name for name in self.needed if name not in value]:
            return f"{where} has no {lacking[0]}"
        shapes = ((name, one, self.fields.get(name, self.each)) for name, one in value.items())
        told = (
            shape.wrong(one, f"{where}.{name}") for name, one, shape in shapes if shape is not None
        )
        return next(filter(None, told), None)


Shape = Is | ListOf | ObjectOf


def said(where: str, value: Any, expected: str) -> str:
    """`segments[0] is 5, expected an object`."""
    return f"{where.removeprefix('.')} is {repr(value)[:FEW]}, expected {expected}"

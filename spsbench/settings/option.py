"""A field of a record as a user meets it: a flag, a TOML key and a Python keyword at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

MODELS, METHOD, SAMPLING = "Models", "Method", "Sampling"
WORK, SIZE, RUN, AUDIT, MACHINE = "What is run", "How much", "The run", "The audit", "Machine"


class Check(NamedTuple):
    """What a value must be."""

    holds: Callable[[Any], bool]
    expected: str  # in words


@dataclass(frozen=True, slots=True)
class Option:
    """Stands in the annotation of a field: `temperature: Annotated[float, Option(...)] = 1.0`.

    The field gives the name, the type, the default and the place in the record; this gives the
    rest. `{model}` in the help of a model's field becomes the target, or the draft model.
    """

    help: str
    panel: str
    check: Check | None = None
    flags: tuple[str, ...] = ()  # beside --name-of-the-field
    shown: str | None = None  # the default in words
    metavar: str | None = None
    ranges: bool = False  # numbers and ranges as text; a list of them is taken as well
    none: str = ""  # a word that means what leaving the option out does


def at_least(low: int) -> Check:
    """A finite number of `low` or more."""
    return Check(lambda value: math.isfinite(value) and value >= low, f"{low} or more")


def between(low: float, high: float, expected: str = "") -> Check:
    """`low` to `high`, both included."""
    return Check(lambda value: low <= value <= high, expected or f"{low}..{high}")


def one_of(*values: str) -> Check:
    """One of some words."""
    return Check(lambda value: value in values, " or ".join(values))

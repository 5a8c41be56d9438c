"""A table of costs as a file: JSON with a version."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import convert, to_builtins

from spsbench.errors import DataError
from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import Surface
from spsbench.settings.method import Drafting
from spsbench.untrusted import read_untrusted

VERSION = 1
KIND = "spsbench costs"
LIMIT = 64 << 20  # bytes
DIGITS = 9  # decimals of a second: the resolution of clocks


def dumps(costs: Costs) -> str:
    """Return the text of the file; seconds to the nanosecond."""
    return json.dumps({"kind": KIND, "version": VERSION, "costs": to_json(costs)})


def loads(text: str | bytes, where: str) -> Costs:
    """Parse a file of costs; DataError, with `where`: no costs, another version, or damage."""
    try:
        contents = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is no JSON ({error}): expected a table of costs. Measure it again"
        ) from error
    if not isinstance(contents, dict) or contents.get("kind") != KIND:
        raise DataError(f"{where} holds no costs: expected a table of them. Name another file")
    if contents.get("version") != VERSION:
        raise DataError(
            f"{where} is of version {contents.get('version')!r}: expected {VERSION}. "
            "Measure the costs again, or use the program that wrote them"
        )
    try:
        return from_json(contents["costs"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where} is incomplete ({error}): expected a table of costs. Measure it again"
        ) from error


def read_costs(path: Path) -> Costs:
    """Read the costs in a file; SpsError: it cannot be read; or as `loads`."""
    return loads(read_untrusted(path, "a table of costs", LIMIT), str(path))


def to_json(costs: Costs) -> dict[str, Any]:
    """Return plain values by field, drafters by label; seconds to the nanosecond, None left out."""
    named = {field.name: getattr(costs, field.name) for field in fields(costs) if field.init}
    values = {name: value for name, value in named.items() if value is not None}
    values["arms"] = by_label(costs.arms)
    if costs.batches is not None:
        values["batches"] = {**vars(costs.batches), "rest": by_label(costs.batches.rest)}
    plain: dict[str, Any] = to_builtins(values, enc_hook=_plain)
    return plain


def from_json(values: Mapping[str, Any]) -> Costs:
    """Return the costs that `to_json` made plain; KeyError, TypeError, ValueError: damage."""
    keyed = {**values, "arms": by_drafting(values["arms"])}
    if (batches := values.get("batches")) is not None:
        keyed["batches"] = {**batches, "rest": by_drafting(batches["rest"])}
    costs = convert(keyed, Costs, dec_hook=_seconds)
    parts = [
        part for by in (costs.arms, costs.rules) for of in by.values() for part in vars(of).values()
    ]
    rounds = [part for part in parts if isinstance(part, Surface)]
    if any(len(part.seconds) != costs.turns for part in rounds):
        raise ValueError("parts were measured in unlike numbers of turns")
    if not (costs.passes.seconds > 0).all():
        raise ValueError("a pass of the target takes no time")
    if costs.batches is not None:
        passes, rest = costs.batches.passes, costs.batches.rest.values()
        turns = {len(part.seconds) for by_size in (passes, *rest) for part in by_size}
        if len(turns) != 1 or any((part.seconds <= 0).any() for part in passes):
            raise ValueError(
                "batches: expected as many turns of each part, and passes that take time"
            )
    return costs


def by_label(costs: Mapping[Drafting, Any]) -> dict[str, Any]:
    """Return costs by the label of how a text is drafted, as in the file."""
    return {str(drafting): value for drafting, value in costs.items()}


def by_drafting(costs: object) -> dict[Drafting, Any]:
    """Return costs by drafting, the inverse of `by_label`; ValueError: a label of no drafter."""
    values = convert(costs, dict[str, Any])
    return {Drafting.parse(label): value for label, value in values.items()}


def _plain(value: Any) -> Any:
    return np.round(value, DIGITS).tolist() if isinstance(value, np.ndarray) else value.item()


def _seconds(kind: Any, values: Any) -> Floats:
    """Return [turns, tokens, contexts] seconds; ValueError: other axes, or not finite."""
    seconds = np.array(values, dtype=np.float64)
    if seconds.ndim != 3 or not np.isfinite(seconds).all():
        raise ValueError("seconds are not finite numbers by turn, tokens and context")
    return seconds

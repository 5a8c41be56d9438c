"""A table of costs as a file: JSON with a version and the CRC-32 of its contents."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.errors import DataError, MissingError
from spsbench.hardware.files import read_file
from spsbench.metrics.costs import Arm, BatchCosts, Costs, Rule, Surface

VERSION = 1
KIND = "spsbench costs"
LIMIT = 64 << 20  # bytes
DIGITS = 9  # decimals of a second: the resolution of clocks


def dumps(costs: Costs) -> str:
    """Return the text of the file; seconds to the nanosecond."""
    values = to_json(costs)
    return json.dumps({"kind": KIND, "version": VERSION, "crc": crc(values), "costs": values})


def loads(text: str | bytes, where: str) -> Costs:
    """Parse the text of a file of costs.

    Raises:
        DataError: no costs, a later version, or damage; names `where`.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is no JSON ({error}): expected a table of costs. Measure it again"
        ) from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise DataError(f"{where} holds no costs: expected a table of them. Name another file")
    if found.get("version") != VERSION:
        raise DataError(
            f"{where} is of version {found.get('version')!r}: expected {VERSION}. "
            "Measure the costs again, or use the program that wrote them"
        )
    values = found.get("costs")
    if not isinstance(values, dict) or found.get("crc") != crc(values):
        raise DataError(
            f"{where} is damaged (its CRC-32 does not fit): expected the file as it was written. "
            "Measure the costs again"
        )
    try:
        return from_json(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where} is incomplete ({error!r}): expected a table of costs. Measure it again"
        ) from error


def read_costs(path: Path) -> Costs:
    """Read the costs in a file.

    Raises:
        MissingError: the file cannot be read.
        DataError: as `loads`.
    """
    try:
        return loads(read_file(path, LIMIT), str(path))
    except OSError as error:
        raise MissingError(
            f"cannot read {path} ({error.strerror}): expected a table of costs. Check the path"
        ) from error


def crc(values: Mapping[str, Any]) -> str:
    """Return the CRC-32 of the canonical JSON of `values`."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(canonical.encode()):08x}"


def to_json(costs: Costs) -> dict[str, Any]:
    """Return plain values."""
    return {
        "passes": _surface(costs.passes),
        "arms": {name: _record(arm) for name, arm in costs.arms.items()},
        "rules": {name: _record(rule) for name, rule in costs.rules.items()},
        "setting": dict(costs.setting),
        "others": costs.others,
        "busy": costs.busy,
        "bandwidth": costs.bandwidth,
        "weights": costs.weights,
        "changed": dict(costs.changed),
    } | ({} if costs.batches is None else {"batches": _of_batches(costs.batches)})


def from_json(values: Mapping[str, Any]) -> Costs:
    """Return costs from plain values: the inverse of `to_json`.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or invalid.
    """
    made = {
        **values,
        "passes": _read(values["passes"]),
        "arms": {name: Arm(**_parts(each)) for name, each in values["arms"].items()},
        "rules": {name: Rule(**_parts(each)) for name, each in values["rules"].items()},
    }
    if values.get("batches") is not None:
        made["batches"] = _read_batches(values["batches"])
    costs = Costs(**made)
    parts = [costs.passes, *(s for each in made["arms"].values() for s in _surfaces(each))]
    parts += [s for each in made["rules"].values() for s in _surfaces(each)]
    if any(len(part.seconds) != costs.turns for part in parts):
        raise ValueError("parts were measured in unlike numbers of turns")
    if not (costs.passes.seconds > 0).all():
        raise ValueError("a pass of the target takes no time")
    return costs


def _record(record: Any) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return {n: _surface(v) if isinstance(v, Surface) else v for n, v in values.items()}


def _parts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: _read(v) if isinstance(v, Mapping) else v for n, v in values.items()}


def _surfaces(record: Any) -> list[Surface]:
    values = [getattr(record, each.name) for each in fields(record)]
    return [value for value in values if isinstance(value, Surface)]


def _of_batches(batches: BatchCosts) -> dict[str, Any]:
    rest = {name: [_surface(each) for each in own] for name, own in batches.rest.items()}
    return {
        "sizes": list(batches.sizes),
        "passes": [_surface(each) for each in batches.passes],
        "rest": rest,
        "cached": batches.cached,
    }


def _read_batches(values: Mapping[str, Any]) -> BatchCosts:
    rest = {name: tuple(_read(each) for each in own) for name, own in values["rest"].items()}
    passes = tuple(_read(each) for each in values["passes"])
    turns = {len(each.seconds) for own in (passes, *rest.values()) for each in own}
    if len(turns) != 1 or any((each.seconds <= 0).any() for each in passes):
        raise ValueError("batches: expected as many turns of each part, and passes that take time")
    return BatchCosts(
        sizes=tuple(values["sizes"]), passes=passes, rest=rest, cached=int(values["cached"])
    )


def _surface(surface: Surface) -> dict[str, Any]:
    return {
        "tokens": list(surface.tokens),
        "contexts": list(surface.contexts),
        "seconds": np.round(surface.seconds, DIGITS).tolist(),
    }


def _read(values: Mapping[str, Any]) -> Surface:
    seconds = np.array(values["seconds"], dtype=np.float64)
    if seconds.ndim != 3 or not all(map(math.isfinite, seconds.flat)):
        raise ValueError("seconds are not finite numbers by turn, tokens and context")
    return Surface(tuple(values["tokens"]), tuple(values["contexts"]), seconds)

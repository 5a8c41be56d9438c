"""Costs by a named roofline: a pass takes the longer of its reads and its operations."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from spsbench.errors import UsageError
from spsbench.metrics.costs import Costs, line
from spsbench.metrics.surfaces import Surface

DEVICES: Mapping[str, tuple[float, float]] = {  # bytes a second, dense 16-bit operations a second
    "a100": (2.039e12, 312e12),  # SXM, 80 GB
    "h100": (3.35e12, 989e12),  # SXM
    "h200": (4.8e12, 989e12),
    "b200": (8.0e12, 2250e12),
    "l4": (0.3e12, 121e12),
    "l40s": (0.864e12, 362e12),
    "rtx4090": (1.008e12, 165e12),
    "mi300x": (5.3e12, 1307e12),
}
"""Peaks by the vendors' data sheets."""

FIELDS: Mapping[str, float] = {  # with their defaults; NaN: the field is needed
    "bandwidth": math.nan,  # bytes a second
    "flops": math.nan,  # operations a second
    "params": math.nan,  # weights of the target that a token uses
    "weight_bytes": 2.0,  # of a weight
    "kv_bytes": 0.0,  # of keys and values of a cached token
    "draft_params": 0.0,  # weights of the draft model; a drafted token is a pass of it
    "context": math.nan,  # tokens cached of each text; else as logged
    "efficiency": 1.0,  # share of both peaks that is reached
}
LONGEST = 1 << 22  # tokens of context


def parse_roofline(text: str) -> dict[str, float]:
    """Return the fields of `h100,params=8e9,kv_bytes=131072`, or of `bandwidth=...,flops=...`.

    Raises:
        UsageError: an unknown device or field, a number that is none, or one that lacks.
    """
    fields = dict(FIELDS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.partition("=")
        if not equals and part.lower() in DEVICES:
            fields["bandwidth"], fields["flops"] = DEVICES[part.lower()]
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in FIELDS or not 0 <= value < math.inf:
            raise UsageError(
                f"roofline {part!r}: expected a device ({', '.join(DEVICES)}) or one of "
                f"{', '.join(FIELDS)} with a number. Change it"
            )
        fields[name] = value
    for name in ("bandwidth", "flops", "params"):
        if not fields[name] > 0:
            raise UsageError(
                f"roofline without {name}: expected a number above 0. Add {name}=..., or name a "
                f"device: {', '.join(DEVICES)}"
            )
    fields["efficiency"] = fields["efficiency"] or 1.0
    return fields


def words(fields: Mapping[str, float]) -> str:
    """Return a roofline in words."""
    return (
        f"A roofline, not a measurement: {fields['params']:.3g} weights of "
        f"{fields['weight_bytes']:g} bytes at {fields['bandwidth']:.3g} B/s and "
        f"{fields['flops']:.3g} operations/s."
    )


def roofline_costs(
    fields: Mapping[str, float], drafters: Mapping[str, bool], batches: Sequence[int], most: int
) -> Costs:
    """Return the costs of a roofline: exact at whole tokens, and to a token of context.

    Args:
        drafters: name -> whether it runs the draft model.
        batches: texts of a batch.
        most: the largest K.
    """
    sizes = sorted({1, *batches})

    def drafting(size: int, runs_model: bool) -> Surface:
        token = seconds(fields, fields["draft_params"], 1, 0.0, size) if runs_model else 0.0
        return line(token, token)

    return Costs.of_passes(
        {size: passes(fields, size, most + 1) for size in sizes},
        {name: {size: drafting(size, model) for size in sizes} for name, model in drafters.items()},
        dict(fields),
    )


def seconds(
    fields: Mapping[str, float], params: float, rows: int, context: float, batch: int
) -> float:
    """Return the seconds of a pass over `rows` rows of each text of the batch."""
    if not params:
        return 0.0
    cached = context if math.isnan(fields["context"]) else fields["context"]
    read = params * fields["weight_bytes"] + batch * cached * fields["kv_bytes"]
    operations = 2.0 * params * rows * batch
    return max(read / fields["bandwidth"], operations / fields["flops"]) / fields["efficiency"]


def passes(fields: Mapping[str, float], batch: int, most: int) -> Surface:
    """Return the seconds of a pass of the target by tokens of each text and context."""
    params, rows, cached = fields["params"], range(1, most + 1), batch * fields["kv_bytes"]
    contexts = {0}
    if cached and math.isnan(fields["context"]):
        contexts.add(LONGEST)
        for n in rows:  # where reads overtake operations, the line has a corner
            read = 2 * params * n * batch * fields["bandwidth"] / fields["flops"]
            corner = (read - params * fields["weight_bytes"]) / cached
            if 0 < corner < LONGEST - 1:
                contexts |= {int(corner), int(corner) + 1}
    axis = tuple(sorted(contexts))
    grid = [[seconds(fields, params, n, context, batch) for context in axis] for n in rows]
    return Surface(tuple(rows), axis, np.array([grid]))

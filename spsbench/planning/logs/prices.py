"""What a round costs, in plain passes of the target: by ratios, a roofline, or measured costs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from spsbench.errors import DataError, UsageError
from spsbench.hardware.files import read_file
from spsbench.metrics.costs import PLAIN, Costs
from spsbench.metrics.costs_file import read_costs
from spsbench.metrics.intervals import Floats

COSTS_BYTES = 256 << 20


class Price(Protocol):
    """Costs of rounds in one batch size."""

    @property
    def batch(self) -> int:
        """Return the texts that share a pass."""

    @property
    def words(self) -> str:
        """Return what the costs are, for a remark."""

    def rounds(self, drafter: str, rule: str, k: int, context: float) -> Floats:
        """Return [K + 1] costs of a round that asks for K tokens, by the tokens drafted.

        Args:
            drafter: spec; one that no price knows costs nothing to ask.
            rule: the verifier.
            k: tokens asked for.
            context: tokens before the round.

        Returns:
            In passes of plain sampling at the same context and batch.
        """


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Costs by hand: a drafted token of a model, and a further row of the target's pass.

    Args:
        draft: cost of a drafted token of each model drafter, in plain passes.
        row: cost of a row beyond the first, in plain passes.
        models: drafters that run a model.
    """

    draft: float = 0.0
    row: float = 0.0
    models: frozenset[str] = frozenset()
    batch: int = 1

    @property
    def words(self) -> str:
        """Return the ratios."""
        models = f"a drafted token of a model costs {self.draft:g}, " if self.models else ""
        return f"In passes of plain sampling {models}a further row {self.row:g}; a look-up is free."

    def rounds(self, drafter: str, rule: str, k: int, context: float) -> Floats:
        """See `Price.rounds`."""
        drafting = k * self.draft if drafter in self.models else 0.0
        return 1.0 + drafting + self.row * np.arange(k + 1, dtype=np.float64)


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

FIELDS = (
    *("params", "weight_bytes", "kv_bytes", "context"),
    *("draft_params", "efficiency", "bandwidth", "flops"),
)


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Costs by a named roofline: a pass takes the longer of its reads and its operations.

    Args:
        bandwidth, flops: of the device, a second.
        params: weights of the target that a token uses.
        weight_bytes: of a weight.
        kv_bytes: of keys and values of a cached token.
        draft_params: of the draft model; a drafted token is a pass of it.
        row_context: tokens cached of each text; None = as logged.
        efficiency: share of both peaks that is reached.
    """

    bandwidth: float
    flops: float
    params: float
    weight_bytes: float = 2.0
    kv_bytes: float = 0.0
    draft_params: float = 0.0
    row_context: float | None = None
    efficiency: float = 1.0
    models: frozenset[str] = frozenset()
    batch: int = 1

    @property
    def words(self) -> str:
        """Return the roofline."""
        return (
            f"A roofline, not a measurement: {self.params:.3g} weights of {self.weight_bytes:g} "
            f"bytes at {self.bandwidth:.3g} B/s and {self.flops:.3g} operations/s."
        )

    def seconds(self, params: float, rows: int, context: float) -> float:
        """Return the seconds of a pass over `rows` rows of each text of the batch."""
        cached = context if self.row_context is None else self.row_context
        read = params * self.weight_bytes + self.batch * cached * self.kv_bytes
        operations = 2.0 * params * rows * self.batch
        return max(read / self.bandwidth, operations / self.flops) / self.efficiency

    def rounds(self, drafter: str, rule: str, k: int, context: float) -> Floats:
        """See `Price.rounds`."""
        plain = self.seconds(self.params, 1, context)
        drafting = 0.0
        if drafter in self.models and self.draft_params:
            drafting = k * self.seconds(self.draft_params, 1, 0.0)
        passes = [self.seconds(self.params, 1 + n, context) for n in range(k + 1)]
        return (drafting + np.array(passes)) / plain


def parse_roofline(text: str) -> Roofline:
    """Return the roofline of `h100,params=8e9,kv_bytes=131072`, or of `bandwidth=...,flops=...`.

    Raises:
        UsageError: an unknown device or field, a number that is none, or one that lacks.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.partition("=")
        if not equals and part.lower() in DEVICES:
            values["bandwidth"], values["flops"] = DEVICES[part.lower()]
            continue
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = math.nan
        if name not in FIELDS or not 0 <= values[name] < math.inf:
            raise UsageError(
                f"roofline {part!r}: expected a device ({', '.join(DEVICES)}) or one of "
                f"{', '.join(FIELDS)} with a number. Change it"
            )
    for field in ("bandwidth", "flops", "params"):
        if not values.get(field):
            raise UsageError(
                f"roofline without {field}: expected a number above 0. Add {field}=..., or name a "
                f"device: {', '.join(DEVICES)}"
            )
    return Roofline(
        bandwidth=values["bandwidth"],
        flops=values["flops"],
        params=values["params"],
        weight_bytes=values.get("weight_bytes", 2.0),
        kv_bytes=values.get("kv_bytes", 0.0),
        draft_params=values.get("draft_params", 0.0),
        row_context=values.get("context"),
        efficiency=values.get("efficiency") or 1.0,
    )


@dataclass(frozen=True)
class Measured:
    """Costs that `sps plan` measured on some machine: `costs.json`."""

    costs: Costs
    batch: int = 1

    @property
    def words(self) -> str:
        """Return where the costs are from."""
        return "Rounds are priced by the measured table of costs."

    def rounds(self, drafter: str, rule: str, k: int, context: float) -> Floats:
        """See `Price.rounds`. A drafter without measured costs is asked for nothing."""
        costs = self.costs
        plain = costs.round_seconds(PLAIN, 0, context).total.value
        arm = drafter if drafter in costs.arms else PLAIN
        verifier = rule if rule in costs.rules else None
        prices = [
            costs.round_seconds(
                arm, k if arm != PLAIN else 0, context, drafted=n, verifier=verifier
            )
            for n in range(k + 1)
        ]
        return np.array([price.total.value for price in prices]) / plain


def read_prices(path: Path) -> tuple[Costs | None, float | None]:
    """Return our table of costs, or the milliseconds a token of a `vllm bench serve` result.

    Raises:
        SpsError: neither of the two.
    """
    try:
        values = json.loads(read_file(path, COSTS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"no costs ({path}: {error}): expected a costs.json of a plan") from error
    for field in ("median_tpot_ms", "mean_tpot_ms"):
        ms = values.get(field) if isinstance(values, dict) else None
        if isinstance(ms, int | float) and 0 < ms < math.inf:
            return None, float(ms)
    return read_costs(path), None


def priced_batches(
    batches: Sequence[int], roofline: Roofline, models: frozenset[str]
) -> list[Roofline]:
    """Return the roofline in each batch, for drafters some of which run models."""
    return [replace(roofline, batch=batch, models=models) for batch in batches]

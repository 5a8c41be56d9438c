"""What is left of the gain in a batch: the best method and K by the texts that share a pass.

    S(B, K) = tau(K) * T(B, 0) / T(B, K)

T(B, K) are the seconds of a round of B texts that request K tokens each, measured
(`metrics.costs.BatchCosts`); tau is of the traces, and does not depend on B, since a text of a
batch does not depend on its neighbours. The greatest of S and 1 (K = 0) is the envelope; B* is the
last batch before it stays at 1.

Beside it, S* = W / (B kv): the cached tokens of each text from which a pass reads as many bytes of
keys and values as of weights (Sadhukhan et al. 2024, MagicDec, arXiv 2408.11049). A draft over a
part of the target's own cache pays beyond it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from spsbench.errors import DataError, UsageError
from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.surfaces import digits
from spsbench.planning.forecast.predictions import Prediction
from spsbench.planning.forecast.recommendation import NOTICED, Forecasts, spread
from spsbench.reports.figures import Curve, Level, Panel, Point, TextTable

FEW = 8  # sizes of a batch that are all shown; of more, those that were measured
LINES = 7  # curves of a plot, beside the envelope


class AtBatch(NamedTuple):
    """The best candidate in a batch of one size."""

    size: int
    best: Prediction | None  # None: plain sampling, K = 0
    speedup: Estimate  # over plain sampling in the same batch
    machine: float  # tokens a second of all texts
    plain: float  # of all texts, by plain sampling
    balance: float | None  # S*, tokens cached of each text

    @property
    def user(self) -> float:
        """Return the tokens a second of one text."""
        return self.machine / self.size

    @property
    def name(self) -> str:
        """Return the candidate in words."""
        return "plain sampling" if self.best is None else str(self.best.candidate)

    @property
    def k(self) -> int:
        """Return K; 0 is plain sampling."""
        return 0 if self.best is None else self.best.candidate.k or 0


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchForecasts:
    """The forecast of every candidate with a constant K in batches."""

    rows: tuple[AtBatch, ...]  # by size, rising
    lines: Mapping[str, tuple[tuple[int, Estimate], ...]]  # candidate -> speed-up by size
    engine_method: str  # draft and rule of `engine_table`; empty: none gains
    engine_table: tuple[tuple[int, int, int], ...]  # texts from, to, and K
    measured: tuple[int, ...]  # sizes whose costs were measured
    lasting: int | None  # B*; None: no batch gains

    @property
    def table_rows(self) -> list[AtBatch]:
        """Return the rows to show: all, or of many those whose size was measured."""
        few = len(self.rows) <= FEW
        ends = {self.rows[0].size, self.rows[-1].size, *self.measured}
        return [row for row in self.rows if few or row.size in ends]

    def __str__(self) -> str:
        parts = []
        for name, same_name in groupby(self.rows, lambda row: row.name):
            rows = list(same_name)
            first, last = rows[0], rows[-1]
            sizes = f"batch {first.size}" + f" to {last.size}" * (last is not first)
            if first.best is None:
                parts.append(f"{name} at {sizes}")
                continue
            gains = f"{first.speedup.mean:.2f}x"
            gains += f" to {last.speedup.mean:.2f}x" * (last is not first)
            parts.append(f"{name} at {sizes} ({gains} predicted)")
        return f"By batch: {'; '.join(parts)}. {self._end()}"

    def _end(self) -> str:
        if self.lasting is None:
            return "No batch gains."
        if self.lasting == self.rows[-1].size:
            return f"The gain lasts to the largest batch that was asked for, {self.lasting}."
        return f"The gain ends after B* = {self.lasting} texts at a time."

    def remarks(self, context: float) -> list[str]:
        """Return the table that vLLM takes, and the context from which caches outweigh weights.

        Args:
            context: tokens in the middle of the texts of the plan.
        """
        table = [list(row) for row in self.engine_table]
        lines = [
            f"For vLLM, with {self.engine_method or 'any draft'}: "
            f'"num_speculative_tokens_per_batch_size": {table}'
        ]
        balanced = [row for row in self.table_rows if row.balance is not None]
        if balanced:
            ends = balanced[:1] + balanced[1:][-1:]
            named = ", ".join(f"{row.balance:,.0f} tokens at batch {row.size}" for row in ends)
            lines.append(
                f"A pass reads as much of keys and values as of weights from S* = {named}; these "
                f"texts have {context:,.0f}. Beyond S* a draft over a part of the cache "
                "(`drafter` self:window=W) gains with the batch."
            )
        return lines

    def table(self) -> TextTable:
        """Return the best candidate by batch as text."""
        rows = [
            [
                str(row.size),
                row.name,
                spread(row.speedup),
                digits(row.machine),
                digits(row.user),
                digits(row.plain),
                "n/a" if row.balance is None else f"{row.balance:,.0f}",
            ]
            for row in self.table_rows
        ]
        headings = ["batch", "best", "speed-up", "machine tokens/s", "user tokens/s"]
        return TextTable(
            "By batch, predicted", [*headings, "plain machine tokens/s", "S*"], rows, names=2
        )

    def panel(self) -> Panel:
        """Return the speed-up by batch: a line for each K of the best, and the envelope."""
        shown_sizes = {row.size for row in self.table_rows}
        best = sorted(self.lines, key=lambda name: -max(e.mean for _, e in self.lines[name]))
        items: list[Curve | Level] = [
            Curve(
                name=name,
                points=tuple(
                    Point(size, e.mean) for size, e in self.lines[name] if size in shown_sizes
                ),
                line=line,
            )
            for line, name in enumerate(best[:LINES])
        ]
        points = tuple(
            Point(row.size, row.speedup.mean, row.speedup.low, row.speedup.high)
            for row in self.table_rows
        )
        items.append(Curve(name="the best K, 0 among them", points=points, line=len(items)))
        return Panel(
            title="Speed-up by batch",
            x="texts at a time",
            y="over ArS in the same batch",
            items=(*items, Level(name="ArS", y=1.0)),
            whole=True,
        )

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": [
                {
                    "batch": row.size,
                    "candidate": row.name,
                    "k": row.k,
                    "speedup": row.speedup.mean,
                    "speedup.low": row.speedup.low,
                    "speedup.high": row.speedup.high,
                    "machine_tokens_per_s": row.machine,
                    "user_tokens_per_s": row.user,
                    "plain_machine_tokens_per_s": row.plain,
                    "balance_tokens": row.balance,
                }
                for row in self.rows
            ],
            "speedups": {
                name: [[size, e.mean] for size, e in line] for name, line in self.lines.items()
            },
            "measured": list(self.measured),
            "lasting": self.lasting,
            "method": self.engine_method,
            "num_speculative_tokens_per_batch_size": [list(row) for row in self.engine_table],
            "answer": str(self),
        }


def forecast_batches(sizes: Sequence[int], forecasts: Forecasts) -> BatchForecasts | None:
    """Return the best candidate by batch, from forecasts of single texts and costs of batches.

    Args:
        sizes: texts of a batch, rising; none: nothing is returned.

    Raises:
        UsageError: no candidate has a constant K.
        DataError: the costs have no batches, smaller ones only, or lack a draft.
    """
    if not sizes:
        return None
    costs = forecasts.costs
    check_batches(sizes, costs)
    batch_costs = costs.batches
    constant = [forecast for forecast in forecasts.all if forecast.candidate.k]
    if not constant or batch_costs is None:
        raise UsageError("`batch`: expected a constant K among what is compared. Add `k` 1..8")
    baseline = constant[0].baseline or constant[0]
    every = range(1, max(sizes) + 1)
    gains = {
        size: [(forecast, forecast.speedup_in(size)) for forecast in constant] for size in every
    }
    tops = {size: max(pairs, key=lambda pair: pair[1].mean) for size, pairs in gains.items()}
    rows = []
    for size in sizes:
        best, speedup = tops[size]
        plain = size * baseline.sums.tokens / float(np.median(baseline.seconds_in(size)))
        pays = speedup.mean >= NOTICED
        if not pays:
            speedup = Estimate(1.0, None, None, speedup.n)
        balance = (
            costs.weights / (size * batch_costs.cached)
            if costs.weights and batch_costs.cached
            else None
        )
        kept = best if pays else None
        rows.append(AtBatch(size, kept, speedup, plain * speedup.mean, plain, balance))
    method, table = engine_table(gains)
    return BatchForecasts(
        rows=tuple(rows),
        lines={
            str(forecast.candidate): tuple((size, gains[size][i][1]) for size in sizes)
            for i, forecast in enumerate(constant)
        },
        engine_method=method,
        engine_table=table,
        measured=batch_costs.sizes,
        lasting=max((row.size for row in rows if row.best is not None), default=None),
    )


def check_batches(sizes: Sequence[int], costs: Costs) -> None:
    """Check that costs were measured in batches as large as these.

    Raises:
        DataError: they were not.
    """
    most = 0 if costs.batches is None else costs.batches.sizes[-1]
    if sizes and most < max(sizes):
        has = f"batches up to {most}" if most else "none of batches"
        raise DataError(
            f"the costs have {has} (`batch`): expected them up to {max(sizes)}. Measure them: plan "
            "with `batch` and without `costs`, or `resume` a plan with `batch`"
        )


Gains = Mapping[int, Sequence[tuple[Prediction, Estimate]]]
"""Size of a batch -> each candidate and its speed-up there."""


def engine_table(gains: Gains) -> tuple[str, tuple[tuple[int, int, int], ...]]:
    """Return the method that gains most over all sizes, and its K as [from, to, K] by size."""

    def total(method: str) -> float:
        return sum(max(1.0, *_speedups(pairs, method)) for pairs in gains.values())

    methods = dict.fromkeys(_method(forecast) for pairs in gains.values() for forecast, _ in pairs)
    best = max(methods, key=total)
    best_k_by_size = {size: _best_k(pairs, best) for size, pairs in gains.items()}
    table = tuple(_ranges(best_k_by_size.items(), lambda pair: pair[1]))
    return (best if any(k for _, _, k in table) else ""), table


def _ranges(pairs: Any, key: Callable[[tuple[int, int]], int]) -> Iterator[tuple[int, int, int]]:
    for k, run in groupby(pairs, key):
        sizes = [size for size, _ in run]
        yield sizes[0], sizes[-1], k


def _method(forecast: Prediction) -> str:
    return forecast.candidate.method


def _speedups(pairs: Sequence[tuple[Prediction, Estimate]], method: str) -> list[float]:
    return [gain.mean for forecast, gain in pairs if _method(forecast) == method]


def _best_k(pairs: Sequence[tuple[Prediction, Estimate]], method: str) -> int:
    mine = [
        (gain.mean, forecast.candidate.k or 0)
        for forecast, gain in pairs
        if _method(forecast) == method
    ]
    speedup, k = max(mine)
    return k if speedup >= NOTICED else 0

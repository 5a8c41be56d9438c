"""What is left of the gain in a batch: the best method and K by the texts that share a pass.

    S(B, K) = tau(K) * T(B, 0) / T(B, K)

T(B, K) are the seconds of a round of B texts that request K tokens each, measured
(`metrics.costs.BatchCosts`); tau is of the traces, and does not depend on B, since a text of a
batch does not depend on its neighbours. Predicted batches are rows like measured ones.

S* = W / (B kv): the cached tokens of each text from which a pass reads as many bytes of keys and
values as of weights (Sadhukhan et al. 2024, MagicDec, arXiv 2408.11049). A draft over a part of the
target's own cache pays beyond it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from spsbench.errors import DataError, UsageError
from spsbench.metrics.costs import BatchCosts, Costs
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.planning.forecast.predictions import Prediction
from spsbench.planning.forecast.recommendation import NOTICED, Forecasts
from spsbench.settings.cell import Cell

FEW = 8  # sizes of a batch that are all shown; of more, those that were measured


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchForecasts:
    """The forecast of candidates with a constant K in batches.

    Attributes:
        rows: plain sampling and what is best in some batch, in each batch to show.
        engine_method: draft and rule of `engine_table`; empty: none gains.
        engine_table: texts from, to, and the best K; 0 is plain sampling.
        balance: S* by texts of a batch.
    """

    rows: tuple[Summary, ...]
    engine_method: str
    engine_table: tuple[tuple[int, int, int], ...]
    balance: Mapping[int, float]

    def remarks(self, context: float) -> list[str]:
        """Return the table that vLLM takes, and the context from which caches outweigh weights.

        Args:
            context: tokens in the middle of the texts of the plan.
        """
        lines = [
            f"For vLLM, with {self.engine_method or 'any draft'}: "
            f'"num_speculative_tokens_per_batch_size": {[list(row) for row in self.engine_table]}'
        ]
        if self.balance:
            ends = [*self.balance.items()]
            named = ", ".join(
                f"{tokens:,.0f} tokens at batch {n}"
                for n, tokens in dict(ends[:1] + ends[-1:]).items()
            )
            lines.append(
                f"A pass reads as much of keys and values as of weights from S* = {named}; these "
                f"texts have {context:,.0f}. Beyond S* a draft over a part of the cache "
                "(`drafter` self:window=W) gains with the batch."
            )
        return lines

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": [
                {
                    "batch": row.cell.batch,
                    "k": row.cell.k,
                    "drafter": str(row.cell.drafter),
                    "verifier": str(row.cell.verifier),
                    "balance_tokens": self.balance.get(row.cell.batch),
                    **{
                        name: None if figure is None else figure._asdict()
                        for name, figure in row.figures.items()
                        if name in ("speedup", "machine_tokens_per_s", "mean_token_time_ms")
                    },
                }
                for row in self.rows
            ],
            "method": self.engine_method,
            "num_speculative_tokens_per_batch_size": [list(row) for row in self.engine_table],
        }


def forecast_batches(
    sizes: Sequence[int], forecasts: Forecasts, cells: Mapping[str, Cell]
) -> BatchForecasts | None:
    """Return forecasts in batches, from those of single texts and the costs of batches.

    Args:
        sizes: texts of a batch, rising; none: nothing is returned.
        cells: candidate name -> cell.

    Raises:
        UsageError: no candidate has a constant K.
        DataError: the costs have no batches, smaller ones only, or lack a draft.
    """
    if not sizes:
        return None
    costs = forecasts.costs
    batches = check_batches(sizes, costs)
    constant = [forecast for forecast in forecasts.all if forecast.candidate.k]
    if not constant:
        raise UsageError("`batch`: expected a constant K among what is compared. Add `k` 1..8")
    gains = {
        size: [(forecast, forecast.speedup_in(size)) for forecast in constant]
        for size in range(1, max(sizes) + 1)
    }
    shown = [s for s in sizes if len(sizes) <= FEW or s in {sizes[0], sizes[-1], *batches.sizes}]
    best = {max(range(len(constant)), key=lambda i: gains[size][i][1].mean) for size in shown}
    plain = cells[str(constant[0].candidate)].auto_regressive
    baseline = constant[0].baseline or constant[0]
    rows = []
    for size in shown:
        tokens_per_s = size * baseline.sums.tokens / float(np.median(baseline.seconds_in(size)))
        rows.append(row(plain, size, baseline, Estimate(1.0, None, None, 0), tokens_per_s))
        for i in sorted(best):
            forecast, gained = gains[size][i]
            cell = cells[str(forecast.candidate)]
            rows.append(row(cell, size, forecast, gained, tokens_per_s * gained.mean))
    method, table = engine_table(gains)
    balance = {
        size: costs.weights / (size * batches.cached)
        for size in shown
        if costs.weights and batches.cached
    }
    return BatchForecasts(
        rows=tuple(rows), engine_method=method, engine_table=table, balance=balance
    )


def row(
    cell: Cell, size: int, forecast: Prediction, gained: Estimate, tokens_per_s: float
) -> Summary:
    """Return the row of a candidate in a batch, which makes so many tokens a second in all."""
    return Summary(
        cell=cell.but(batch=size),
        samples=forecast.texts,
        n=forecast.texts,
        failures=0,
        cut=0,
        timed=0,
        horizon=cell.max_new_tokens,
        block_efficiency=forecast.tau,
        speedup=gained,
        mean_token_time_ms=Estimate(1e3 * size / tokens_per_s, None, None, gained.n),
        measured={"machine_tokens_per_s": Estimate(tokens_per_s, None, None, gained.n)},
    )


def check_batches(sizes: Sequence[int], costs: Costs) -> BatchCosts:
    """Return the costs of batches as large as these.

    Raises:
        DataError: they were not measured.
    """
    batches = costs.batches
    if batches is not None and batches.sizes[-1] >= max(sizes):
        return batches
    has = "none of batches" if batches is None else f"batches up to {batches.sizes[-1]}"
    raise DataError(
        f"the costs have {has} (`batch`): expected them up to {max(sizes)}. Measure them: plan "
        "with `batch` and without `costs`, or `resume` a plan with `batch`"
    )


def engine_table(
    gains: Mapping[int, Sequence[tuple[Prediction, Estimate]]],
) -> tuple[str, tuple[tuple[int, int, int], ...]]:
    """Return the method that gains most over all sizes, and its K as [from, to, K] by size."""

    def of(size: int, method: str) -> list[tuple[float, int]]:
        pairs = [(f.candidate, gain.mean) for f, gain in gains[size]]
        return [(gain, candidate.k or 0) for candidate, gain in pairs if candidate.method == method]

    methods = dict.fromkeys(f.candidate.method for f, _ in gains[1])
    best = max(methods, key=lambda method: sum(max([(1.0, 0), *of(n, method)])[0] for n in gains))

    def ranges() -> Iterator[tuple[int, int, int]]:
        tops = ((size, max(of(size, best))) for size in gains)
        by_size = [(size, k if gained >= NOTICED else 0) for size, (gained, k) in tops]
        for k, run in groupby(by_size, lambda pair: pair[1]):
            sizes = [size for size, _ in run]
            yield sizes[0], sizes[-1], k

    table = tuple(ranges())
    return (best if any(k for _, _, k in table) else ""), table

"""Gains that are left in a batch: the best method and K by the texts that share a pass.

    S(B, K) = tau(K) * T(B, 0) / T(B, K)

T(B, K) are the seconds of a round of B texts that request K tokens each, measured
(`metrics.costs.BatchCosts`); tau is of the traces, and does not depend on B, since a text of a
batch does not depend on its neighbours. Predicted batches are rows like measured ones.

S* = W / (B kv): the cached tokens of each text from which a pass reads as many bytes of keys and
values as of weights (Sadhukhan et al. 2024, MagicDec, arXiv 2408.11049). A draft over a part of the
target's own cache pays beyond it.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from spsbench.errors import DataError, UsageError
from spsbench.metrics.costs import BatchCosts, Costs
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.planning.forecast.forecasts import Forecasts
from spsbench.planning.forecast.recommendation import NOTICED
from spsbench.settings.cell import Cell
from spsbench.settings.method import Method

FEW = 8  # sizes of a batch that are all listed; of more, those that were measured
IN_ENGINES = "num_speculative_tokens_per_batch_size"  # texts from, to, and K: an option of vLLM
OF_JSON = ("speedup", "machine_tokens_per_s", "mean_token_time_ms")


class BatchForecasts(NamedTuple):
    """Plain sampling and what is best in some batch, in each batch; remarks, and plain values."""

    rows: list[Summary]
    remarks: list[str]
    values: dict[str, Any]


def forecast_batches(
    sizes: Sequence[int], forecasts: Forecasts, cells: Mapping[Method, Cell]
) -> BatchForecasts | None:
    """Return rows, remarks and values for batches: ArS and the methods that are best at some size.

    `sizes` are texts of a batch, rising; without any the result is None. Beyond `FEW` sizes only
    the ends and measured ones have rows, in values too; a table for vLLM has all from 1 on. `cells`
    has one for each forecast's method. UsageError: no forecast has a constant K. DataError: the
    costs lack batches as large as these.
    """
    if not sizes:
        return None
    costs = forecasts.costs
    batches = batch_costs_of(sizes, costs)
    constant = {f.method: f for f in forecasts.all if f.method.k}
    if not constant:
        raise UsageError("`batch`: expected a constant K among what is compared. Add `k` 1..8")
    gains = {
        size: {method: forecast.speedup_in(size) for method, forecast in constant.items()}
        for size in range(1, max(sizes) + 1)
    }
    listed = [s for s in sizes if len(sizes) <= FEW or s in {sizes[0], sizes[-1], *batches.sizes}]
    best = {max(gains[size], key=lambda m: (gains[size][m].mean, str(m))) for size in listed}
    first = next(iter(constant))
    baseline, plain = constant[first].baseline or constant[first], cells[first].auto_regressive
    rows = []
    for size in listed:
        tokens_per_s = size * baseline.sums.tokens / float(np.median(baseline.rounds.seconds(size)))
        compared = [(plain, baseline, Estimate(1.0, None, None, 0))]
        compared += [(cells[m], f, gains[size][m]) for m, f in constant.items() if m in best]
        for cell, forecast, gained in compared:
            in_all = Estimate(tokens_per_s * gained.mean, None, None, gained.n)
            figures = {"block_efficiency": forecast.tau, "speedup": gained}
            figures["mean_token_time_ms"] = in_all._replace(mean=1e3 * size / in_all.mean)
            machine = {"machine_tokens_per_s": in_all}
            rows.append(
                summary_row(cell.but(batch=size), forecast.texts, measured=machine, **figures)
            )
    advised, table = engine_table(gains)
    balance = {size: costs.weights / (size * batches.cached) for size in listed if costs.weights}
    remarks = [f'For vLLM, with {advised or "any draft"}: "{IN_ENGINES}": {table}']
    if balance:
        ends = (listed[0], listed[-1]) if len(listed) > 1 else listed
        named = ", ".join(f"{balance[size]:,.0f} tokens at batch {size}" for size in ends)
        remarks.append(
            f"A pass reads as much of keys and values as of weights from S* = {named}; these "
            f"texts have {forecasts.context:,.0f}. Beyond S* a draft over a part of the cache "
            "(`drafter` self:window=W) gains with the batch."
        )
    values = [
        {
            "batch": row.cell.batch,
            "k": row.cell.k,
            "drafter": str(row.cell.drafter),
            "verifier": str(row.cell.verifier),
            "balance_tokens": balance.get(row.cell.batch),
            **{name: f if (f := row.figures[name]) is None else f._asdict() for name in OF_JSON},
        }
        for row in rows
    ]
    return BatchForecasts(rows, remarks, {"rows": values, "method": advised, IN_ENGINES: table})


def summary_row(cell: Cell, n: int, **figures: Any) -> Summary:
    """Return a row with figures over `n` texts, none of which was timed in a benchmark."""
    return Summary(cell=cell, samples=n, n=n, horizon=cell.max_new_tokens, **figures)


def batch_costs_of(sizes: Sequence[int], costs: Costs) -> BatchCosts:
    """Return the costs of batches; DataError: there are none, or none as large as max(`sizes`)."""
    batches = costs.batches
    if batches is not None and batches.sizes[-1] >= max(sizes):
        return batches
    has = "none of batches" if batches is None else f"batches up to {batches.sizes[-1]}"
    raise DataError(
        f"the costs have {has} (`batch`): expected them up to {max(sizes)}. Measure them: plan "
        "with `batch` and without `costs`, or `resume` a plan with `batch`"
    )


def engine_table(gains: Mapping[int, Mapping[Method, Estimate]]) -> tuple[str, list[list[int]]]:
    """Return the draft and rule that gain most over all sizes, and [from size, to size, K] by size.

    `gains` is size -> method -> speed-up, sizes rising. Ends are inclusive. K is 0, plain sampling,
    where no K gains noticeably; the name is empty where that is at all sizes.
    """
    tops: dict[Method, list[tuple[float, int]]] = {}  # group -> (gain, K) at each size
    for by_method in gains.values():
        for group, methods in group_by(by_method, lambda method: method.group).items():
            top = max((by_method[method].mean, method.k or 0) for method in methods)
            tops.setdefault(group, []).append(top)
    group = max(tops, key=lambda group: sum(max(gained, 1.0) for gained, _ in tops[group]))
    ks = [k if gained >= NOTICED else 0 for gained, k in tops[group]]
    table: list[list[int]] = []
    for k, run in groupby(zip(gains, ks, strict=True), lambda pair: pair[1]):
        sizes = [size for size, _ in run]
        table.append([sizes[0], sizes[-1], k])
    return str(group) if any(ks) else "", table

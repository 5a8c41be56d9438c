"""The closed forms of speculation, by acceptance rate and K.

With alpha the chance that a drafted token is kept, alike in every slot, c the cost of a drafted
token and r that of a further row, both in plain passes:

    E[tokens] = (1 - alpha^(K + 1)) / (1 - alpha)            Leviathan et al. 2023, equation 1
    speed-up  = E[tokens] / (1 + K (c + r))                   Theorem 3.8 at r = 0
    work      = (K c + K + 1) / E[tokens]                     Theorem 3.11, operations over plain

Each is the prediction of one round of K slots, priced by ratios. Theorem 3.11 counts operations:
its c is a ratio of operations, for which the ratio of costs stands.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.errors import UsageError
from spsbench.metrics.costs import Costs
from spsbench.planning.forecast.predictions import ARS, Candidate, Prediction
from spsbench.planning.forecast.rounds import of_alpha
from spsbench.reports.reporter import TextTable


def formula(alpha: float, k: int, draft: float, row: float) -> Prediction:
    """Return the prediction of one round at an acceptance rate."""
    costs = Costs.of_ratios(row, {"model": draft})
    baseline = Prediction(candidate=ARS, costs=costs)
    baseline.add_plain(1, 0, (0, 0))
    prediction = Prediction(
        candidate=Candidate(draft="model", verifier="sps", k=k),
        costs=costs,
        baseline=baseline,
        operations=draft,
    )
    prediction.add(of_alpha(alpha, k), 0, (0, 0))
    return prediction


def rates_of(text: str) -> list[float]:
    """Return acceptance rates: `0.5,0.7,0.9`.

    Raises:
        UsageError: something else, or a rate outside 0..1.
    """
    rates = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = -1.0
        if not 0 <= rate <= 1:
            raise UsageError(f"alpha {part!r}: expected numbers from 0 to 1, as 0.5,0.7,0.9")
        rates.append(rate)
    return rates


def formula_values(
    rates: Sequence[float], ks: Sequence[int], draft: float, row: float
) -> dict[str, Any]:
    """Return E[tokens], speed-up and work as lists [alpha][K], and the best K; None without one."""
    by_rate = [[formula(alpha, k, draft, row) for k in ks] for alpha in rates]
    gains = [[prediction.gain() for prediction in by_k] for by_k in by_rate]
    return {
        "alpha": list(rates),
        "k": list(ks),
        "draft_ratio": draft,
        "row_ratio": row,
        "expected_tokens": [[prediction.tau.mean for prediction in by_k] for by_k in by_rate],
        "speedup": gains,
        "best_k": [ks[by_k.index(max(by_k))] if max(by_k) > 1 else None for by_k in gains],
        "work": [[prediction.work for prediction in by_k] for by_k in by_rate],
    }


def formula_tables(values: Mapping[str, Any]) -> list[TextTable]:
    """Return the tables of `formula_values`: a row a rate, a column a K."""
    heads = ["alpha", *(f"K = {k}" for k in values["k"])]
    costs = (
        f"a drafted token costs {values['draft_ratio']:g} and a further row "
        f"{values['row_ratio']:g} of a plain pass"
    )

    def rows(name: str, unit: str = "") -> list[list[str]]:
        by_rate = zip(values["alpha"], values[name], strict=True)
        return [[f"{alpha:g}", *(f"{x:.2f}{unit}" for x in by_k)] for alpha, by_k in by_rate]

    best = ["none" if k is None else f"K = {k}" for k in values["best_k"]]
    gains = [[*cells, k] for cells, k in zip(rows("speedup", "x"), best, strict=True)]
    return [
        TextTable("E[tokens] of a round", heads, rows("expected_tokens")),
        TextTable(f"Speed-up, where {costs}", [*heads, "best"], gains),
        TextTable("Operations over plain sampling", heads, rows("work")),
    ]

"""The closed forms of speculation, by acceptance rate and K.

With alpha the chance that a drafted token is kept, alike in every slot, c the cost of a drafted
token and r that of a further row, both in plain passes:

    E[tokens] = (1 - alpha^(K + 1)) / (1 - alpha)            Leviathan et al. 2023, equation 1
    speed-up  = E[tokens] / (1 + K (c + r))                   Theorem 3.8 at r = 0
    work      = (K c + K + 1) / E[tokens]                     Theorem 3.11, operations over plain

Theorem 3.11 counts operations: its c is a ratio of operations, for which the ratio of costs stands.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.errors import UsageError
from spsbench.reports.figures import TextTable


def tokens(alpha: float, k: int) -> float:
    """Return the expected tokens of a round."""
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(alpha: float, k: int, draft: float, row: float) -> float:
    """Return the expected speed-up over plain sampling."""
    return tokens(alpha, k) / (1 + k * (draft + row))


def work(alpha: float, k: int, draft: float) -> float:
    """Return the operations over those of plain sampling."""
    return (k * draft + k + 1) / tokens(alpha, k)


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
    gains = [[speedup(alpha, k, draft, row) for k in ks] for alpha in rates]
    return {
        "alpha": list(rates),
        "k": list(ks),
        "draft_ratio": draft,
        "row_ratio": row,
        "expected_tokens": [[tokens(alpha, k) for k in ks] for alpha in rates],
        "speedup": gains,
        "best_k": [ks[by_k.index(max(by_k))] if max(by_k) > 1 else None for by_k in gains],
        "work": [[work(alpha, k, draft) for k in ks] for alpha in rates],
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

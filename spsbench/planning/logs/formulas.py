"""The closed forms of speculation, by acceptance rate and K.

With alpha the chance that a drafted token is kept, alike in every slot, c the cost of a drafted
token and r that of a further row, both in plain passes:

    E[tokens] = (1 - alpha^(K + 1)) / (1 - alpha)            Leviathan et al. 2023, equation 1
    speed-up  = E[tokens] / (1 + K (c + r))                   Theorem 3.8 at r = 0
    work      = (K c + K + 1) / E[tokens]                     Theorem 3.11, operations over plain

Theorem 3.11 counts operations: its c is a ratio of operations, for which the ratio of costs stands.
"""

from collections.abc import Sequence

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


def formula_tables(
    rates: Sequence[float], ks: Sequence[int], draft: float, row: float
) -> list[TextTable]:
    """Return E[tokens], speed-up with the best K, and work: a row a rate, a column a K."""
    heads = [f"K = {k}" for k in ks]
    costs = f"a drafted token costs {draft:g} and a further row {row:g} of a plain pass"
    gains = []
    for alpha in rates:
        by_k = {k: speedup(alpha, k, draft, row) for k in ks}
        best = max(by_k, key=lambda k: by_k[k])
        named = f"K = {best}" if by_k[best] > 1 else "none"
        gains.append([f"{alpha:g}", *(f"{gain:.2f}x" for gain in by_k.values()), named])
    return [
        TextTable(
            "E[tokens] of a round",
            ["alpha", *heads],
            [[f"{a:g}", *(f"{tokens(a, k):.2f}" for k in ks)] for a in rates],
        ),
        TextTable(f"Speed-up, where {costs}", ["alpha", *heads, "best"], gains),
        TextTable(
            "Operations over plain sampling",
            ["alpha", *heads],
            [[f"{a:g}", *(f"{work(a, k, draft):.2f}" for k in ks)] for a in rates],
        ),
    ]

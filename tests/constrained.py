"""The law of whole texts under an automaton, written down once more: string by string.

Nothing of the package is used: each string of tokens is read from its first one, refused tokens
have no chance, and what is left is cut as the options say, in plain Python.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

Law = Callable[[tuple[int, ...]], Sequence[float]]
Outcome = tuple[tuple[int, ...], str]


def law_of_texts(
    table: Any, law: Law, prompt: tuple[int, ...], tokens: int, **warp: Any
) -> dict[Outcome, float]:
    """Text and its end -> its chance, of texts of at most `tokens` tokens under `table`."""
    laws: dict[Outcome, float] = {}
    for length in range(1, tokens + 1):
        for text in product(range(table.vocab), repeat=length):
            ended = text[-1] == table.eos
            if table.eos in text[:-1] or (length < tokens and not ended):
                continue
            chance = chance_of(table, law, prompt, text, warp)
            if chance > 0:
                laws[text, "eos" if ended else "length"] = chance
    return laws


def chance_of(
    table: Any, law: Law, prompt: tuple[int, ...], text: tuple[int, ...], warp: dict[str, Any]
) -> float:
    """The chance that a text begins as `text`."""
    chance, state = 1.0, 0
    for at, token in enumerate(text):
        allowed = set(table.moves[state])
        allowed |= {table.eos} if state in table.accepting else set()
        if token not in allowed:
            return 0.0
        chance *= cut(law(prompt + text[:at]), allowed, **warp)[token]
        state = table.moves[state].get(token, state)
    return chance


def cut(
    row: Sequence[float],
    allowed: set[int],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[float]:
    """A law over its allowed tokens, at a temperature, after top-k, top-p and min-p."""
    weights = [x if i in allowed else 0.0 for i, x in enumerate(row)]
    if temperature == 0:
        best = weights.index(max(weights))
        return [float(i == best) for i in range(len(weights))]
    if top_k:
        least = sorted(weights, reverse=True)[top_k - 1]
        weights = [x if x >= least else 0.0 for x in weights]
    weights = normal([x ** (1 / temperature) for x in weights])
    if top_p < 1:
        mass, kept = 0.0, [0.0] * len(weights)
        for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
            if mass < top_p:
                kept[i] = weights[i]
            mass += weights[i]
        weights = normal(kept)
    return normal([x if x >= min_p * max(weights) else 0.0 for x in weights])


def normal(weights: Sequence[float]) -> list[float]:
    """Weights with the sum 1."""
    total = math.fsum(weights)
    return [x / total for x in weights]

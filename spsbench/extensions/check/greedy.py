"""Compare greedy texts with a reference: identical, a tie within rounding, or a bug.

The reference is the baseline, else the weights, else the server's own stated probabilities. Two
texts that differ are a tie if both tokens are the reference's two likeliest and their logarithms
differ by at most twice the rounding. The rounding is the largest difference between both statements
of one token, over the common prefixes of all texts and their references.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spsbench.audit.statistical.comparison import (
    Compared,
    GreedyKind,
    GreedyResult,
    kind_of,
    with_wrong_token,
)
from spsbench.extensions.check.columns import BY_ID, chance, is_whole, resolved
from spsbench.extensions.check.weights import Weights
from spsbench.foreign import UNLISTED
from spsbench.serving.engines import Answer, Stated

LEAST = 1e-3  # nats; engines print that many digits
SAME = 0.01  # nats between two statements of the probability of one token, at most
ROUNDED = 1e-3  # mass that printed digits may hide
LONGEST = 40  # characters of a token in a line


@dataclass
class ServerGreedy(GreedyResult):
    """Comparisons of a server's greedy texts with a reference, and the controls."""

    @property
    def line(self) -> str:
        """Return the result in words."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        return f"against {self.reference}: {counts or 'no texts'}{self.failed_controls}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {**asdict(self), "line": self.line}
        for comparison in values["compared"]:
            del comparison["logits"]  # servers give none
        return values


def described(comparison: Compared) -> str:
    """Return a comparison in a line."""
    name, kind, position = comparison.name, comparison.kind, comparison.position
    if position is None:
        return f"{name}: {kind}"
    gap, tolerance = comparison.gap, comparison.tolerance
    quoted = [repr(str(token)[:LONGEST]) for token in comparison.tokens or ()]
    pair = f" ({', '.join(quoted)})" if quoted else ""
    apart = f", {gap:.3g} nats apart" if gap is not None else ""
    allowed = f", rounding allows {tolerance:.3g}" if tolerance is not None else ""
    return f"{name}: {kind} at token {position + 1}{pair}{apart}{allowed}"


def against_rows(
    name: str, rows: Sequence[Stated], keys: Sequence[str], tolerance: float
) -> Compared:
    """Compare emitted tokens with the likeliest of the reference, given the same prefix."""
    for at, (stated, key) in enumerate(zip(rows, keys, strict=False)):
        row = distinct(stated)
        if not row or key == row[0][0]:
            continue
        logprobs = dict(row)
        gap = row[0][1] - logprobs[key] if key in logprobs else None
        if gap == 0.0:  # bitwise equal: either token is the argmax
            continue
        pair = row[0][0], key
        kind = kind_of(pair, [listed for listed, _ in row[:2]], gap, tolerance)
        return Compared(name, kind, at, pair, gap, tolerance)
    return Compared(name, GreedyKind.IDENTICAL)


def distinct(row: Stated) -> Stated:
    """Return the resolved part of a row, of tokens with one key the likeliest."""
    first: dict[str, float] = {}
    for key, logprob in resolved(row):
        first.setdefault(key, logprob)
    return list(first.items())


def against_itself(name: str, answer: Answer) -> Compared:
    """Compare a greedy text with the server's own stated probabilities."""
    if not any(answer.stated):
        return Compared(name, GreedyKind.ALONE)
    widest = max(map(len, answer.stated))
    triples = zip(answer.stated, answer.keys, answer.own, strict=False)
    rows = [beside(row, key, logprob, widest) for row, key, logprob in triples]
    return against_rows(name, rows, answer.keys, LEAST)


def beside(row: Stated, key: str, logprob_beside: float, widest: int) -> Stated:
    """Return a row in which an emitted text has the probability stated beside the token.

    The list may give that of another token with this text. Nothing is known where the token has
    none, and the list lacks one.
    """
    if not row or BY_ID.fullmatch(key):
        return row
    if (logprob_beside == 0.0 or logprob_beside <= UNLISTED) and len(row) < widest:
        return []
    if any(agree(logprob, logprob_beside) for text, logprob in row if text == key):
        return row
    others = [entry for entry in row if entry[0] != key]
    return sorted([(key, logprob_beside), *others], key=lambda entry: -entry[1])


def agree(listed: float, beside: float) -> bool:
    """Return whether the logarithm beside a token may be the listed one; 0 stands for none."""
    return beside == 0.0 or beside <= UNLISTED or abs(listed - beside) <= SAME


def shared_texts(answers: Sequence[Answer]) -> set[str]:
    """Return the keys that several tokens may print, where an engine names tokens by their texts.

    A list has such a text twice, or with another probability than beside the emitted token; or the
    list is shorter than others, and lost one of two entries with this key.
    """
    shared: set[str] = set()
    for answer in answers:
        widest = max(map(len, answer.stated), default=0)
        for row, key, logprob in zip(answer.stated, answer.keys, answer.own, strict=False):
            if BY_ID.fullmatch(key):
                continue
            listed = resolved(row)
            counts = Counter(text for text, _ in listed)
            shared |= {text for text, count in counts.items() if count > 1 or not is_whole(text)}
            if key in counts and not any(agree(lp, logprob) for text, lp in listed if text == key):
                shared.add(key)
            if len(row) < widest and 1 - sum(chance(lp) for _, lp in listed) > ROUNDED:
                shared |= counts.keys()
    return shared


def against_weights(
    names: Sequence[str],
    weights: Weights,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Answer],
) -> list[Compared]:
    """Compare greedy texts with the argmax of the weights, given the prefix of each token."""
    ids = [weights.tokens(text) or [] for text in texts]
    rows = [rows_of(weights, prompt, listed) for prompt, listed in zip(prompts, ids, strict=True)]
    keys = [[f"#{i}" for i in listed] for listed in ids]
    apart = [0.0]
    for row, key, text in zip(rows, keys, texts, strict=True):
        shared = against_rows("", row, key, 0.0).position
        stated = zip(row[:shared], key, text.own, strict=False)
        apart += [
            abs(logprob - dict(listed)[token])
            for listed, token, logprob in stated
            if logprob > UNLISTED
        ]
    tolerance = 2 * max(apart) + LEAST
    return [
        against_rows(name, row, key, tolerance) if key else Compared(name, GreedyKind.UNKNOWN)
        for name, row, key in zip(names, rows, keys, strict=True)
    ]


def rows_of(weights: Weights, prompt: Sequence[int], ids: Sequence[int]) -> list[Stated]:
    """Return the weights' three likeliest tokens, and the emitted token, at each position."""
    logits = weights.score(prompt, ids)
    shifted = logits - logits.max(1, keepdims=True)
    scored = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = []
    for row, emitted in zip(scored, ids, strict=False):
        best = np.argsort(-row)[:3].tolist()
        listed = [*best, *([emitted] if emitted not in best else [])]
        rows.append([(f"#{i}", float(row[i])) for i in listed])
    return rows


def against_baseline(
    names: Sequence[str], baselines: Sequence[Answer], texts: Sequence[Answer]
) -> list[Compared]:
    """Compare greedy texts with those of another server."""
    pairs = list(zip(baselines, texts, strict=True))
    apart = [0.0]
    for base, text in pairs:
        at = parting(base, text)
        logprobs = zip(base.own[:at], text.own[:at], strict=False)
        apart += [abs(a - b) for a, b in logprobs if min(a, b) > UNLISTED]
    tolerance = 2 * max(apart) + LEAST
    shared = shared_texts(baselines)
    return [
        compared_pair(name, *pair, tolerance, shared)
        for name, pair in zip(names, pairs, strict=True)
    ]


def parting(base: Answer, text: Answer) -> int | None:
    """Return the first position with different tokens; None if the texts agree."""
    pairs = enumerate(zip(base.keys, text.keys, strict=False))
    return next((i for i, (a, b) in pairs if a != b), None)


def compared_pair(
    name: str, base: Answer, answer: Answer, tolerance: float, shared: Set[str]
) -> Compared:
    """Compare a greedy text with another; `shared` knows the texts that several tokens print."""
    if not base.keys or not answer.keys:
        same = base.text == answer.text
        return Compared(name, GreedyKind.IDENTICAL if same else GreedyKind.UNKNOWN)
    at = parting(base, answer)
    if at is None:
        if len(base.keys) == len(answer.keys):
            return Compared(name, GreedyKind.IDENTICAL)
        shorter = min(len(base.keys), len(answer.keys))
        return Compared(name, GreedyKind.BUG, shorter)  # one text ends before the other
    tokens = base.keys[at], answer.keys[at]
    if not (len(base.stated) > at and base.stated[at]) or answer.keys[at] in shared:
        return Compared(name, GreedyKind.UNKNOWN, at, tokens)
    rows = [[] if i < at else row for i, row in enumerate(base.stated[: at + 1])]
    comparison = against_rows(name, rows, answer.keys[: at + 1], tolerance)
    if (
        comparison.position is None
    ):  # the baseline did not emit the token that it states as likeliest
        return Compared(name, GreedyKind.TIE, at, tokens, 0.0, tolerance)
    return comparison


def third_is_a_bug(rows: Sequence[Stated], keys: Sequence[str], tolerance: float = 0.0) -> bool:
    """Plant the third choice in the middle of a text and return whether it counts as a bug."""
    distinct_rows = [distinct(row) for row in rows[: len(keys)]]
    places = [i for i, row in enumerate(distinct_rows) if len(row) >= 3]
    if not places:
        return True
    at = places[len(places) // 2]
    planted = with_wrong_token(keys, at, distinct_rows[at][2][0])
    rows_from_there = [[] if i < at else row for i, row in enumerate(rows)]
    return against_rows("planted", rows_from_there, planted, tolerance).kind is GreedyKind.BUG

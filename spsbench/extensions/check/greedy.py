"""Compare greedy texts with a reference: identical, a tie within rounding, or a bug.

The reference is the baseline, else the weights, else the server's own stated probabilities; the
last two say what follows the text's own prefix. Texts that differ are a tie if both tokens are the
reference's two likeliest and at most twice the rounding apart: the largest difference of two
logarithms of one token, over the common prefixes of all texts and their references.
"""

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from spsbench.audit.statistical.betting import log_probs
from spsbench.audit.statistical.comparison import (
    Compared,
    GreedyKind,
    GreedyResult,
    greedy_kind,
    with_wrong_token,
)
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check.columns import BY_ID, chance, is_whole, resolve_row
from spsbench.extensions.check.weights import LocalModel
from spsbench.serving.engines import Answer, Stated
from spsbench.serving.wire import UNLISTED

LEAST = 1e-3  # nats; engines print that many digits
SAME = 0.01  # nats between two statements of the probability of one token, at most
ROUNDED = 1e-3  # mass that printed digits may hide
APART = 0.5  # median nats between stated and scored that rounding cannot explain
AGREE = 0.6  # share of equal greedy tokens expected of the same model
LOST = 0.15  # mean nats that its own choice may have over the server's
LONGEST = 40  # characters of a token in a line


@dataclass
class ServerGreedy(GreedyResult):
    """Comparisons of a server's greedy texts with a reference, and the controls."""

    doubts: dict[AuditVerdict, str] = field(default_factory=dict)  # why a verdict is not decided
    left_out: dict[str, int] = field(default_factory=dict)  # texts by reason

    @property
    def verdict(self) -> AuditVerdict:
        """Return the verdict; where that is in doubt, that it cannot be decided."""
        verdict = super().verdict
        return AuditVerdict.UNKNOWN if verdict in self.doubts else verdict

    @property
    def line(self) -> str:
        """Return in words: reference, count of each kind, failed controls, left out, doubt."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        doubt = self.doubts.get(super().verdict, "")
        left_out = "".join(f"; {n} left out: it {why}" for why, n in self.left_out.items())
        line = f"against {self.reference}: {counts or 'no texts'}{self.failed_controls}{left_out}"
        return f"{line}; not decided, as {doubt}" if doubt else line

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the `line` as plain values, without the logits."""
        values = {**asdict(self), "line": self.line}
        for comparison in values["compared"]:
            del comparison["logits"]  # servers give none
        return values


def describe(text: Compared) -> str:
    """Return a comparison in a line; of unlike texts position, tokens, gap and tolerance too."""
    if text.position is None:
        return f"{text.name}: {text.kind}"
    tokens = ", ".join(repr(str(token)[:LONGEST]) for token in text.tokens or ())
    parts = [
        f"{text.name}: {text.kind} at token {text.position + 1}{f' ({tokens})' * bool(tokens)}"
    ]
    parts += [f"{text.gap:.3g} nats apart"] if text.gap is not None else []
    parts += [f"rounding allows {text.tolerance:.3g}"] if text.tolerance is not None else []
    return ", ".join(parts)


def compare_served(
    reference: str,
    bases: Sequence[Answer | None],
    texts: Sequence[Answer],
    names: Sequence[str] = (),
    tolerance: float | None = None,
) -> ServerGreedy:
    """Compare greedy texts with a reference's, text by text; a bug planted in one is the control.

    A text is ALONE where its base is None, or where one of both does not balance (counted by reason
    in `left_out`). Tokens of a tie are `tolerance` nats apart at most; None: twice the rounding
    measured on these texts, where a key that several tokens print makes a difference UNKNOWN.
    `names` are of the texts; empty: "prompt 1" and so on.
    """
    names = names or [f"prompt {i + 1}" for i in range(len(texts))]
    unbalanced = [unbalanced_in(*pair) for pair in zip(bases, texts, strict=True)]
    bases = [None if why else base for base, why in zip(bases, unbalanced, strict=True)]
    pairs = [(base, text) for base, text in zip(bases, texts, strict=True) if base]
    shared: set[str] = set()
    if tolerance is None:
        tolerance, shared = rounding_between(pairs), shared_texts([base for base, _ in pairs])
    compared = [
        compare_pair(name, base, text, tolerance, shared)
        if base
        else Compared(name, GreedyKind.ALONE)
        for name, base, text in zip(names, bases, texts, strict=True)
    ]
    result = ServerGreedy(reference, compared, all(third_is_a_bug(base) for base, _ in pairs[:1]))
    result.left_out = dict(Counter(filter(None, unbalanced)))
    return result


def rounding_between(pairs: Sequence[tuple[Answer, Answer]]) -> float:
    """Return the nats that rounding explains: twice the largest difference over common prefixes."""
    apart = [0.0]
    for base, text in pairs:
        logprobs = zip(base.own, text.own[: first_difference(base, text)], strict=False)
        apart += [abs(a - b) for a, b in logprobs if min(a, b) > UNLISTED]
    return 2 * max(apart) + LEAST


def unbalanced_in(base: Answer | None, text: Answer) -> str:
    """Return why a text, or what it is compared with, does not balance; empty if both do."""
    reason = text.miscount(math.inf) or text.misstatement()
    return reason or (base.misstatement() if base else "")


def compare_best(
    texts: Sequence[Answer], bases: Sequence[Answer] | None, names: Sequence[str] = ()
) -> ServerGreedy:
    """Compare greedy texts with `bases` of the baseline; None: with what each itself states."""
    if bases is not None:
        return compare_served("the baseline", bases, texts, names)
    stated = list(map(expect_by_itself, texts))
    return compare_served("what the server itself states", stated, texts, names, LEAST)


def first_difference(base: Answer, text: Answer) -> int | None:
    """Return the first position with different tokens; None if one text begins the other."""
    pairs = enumerate(zip(base.keys, text.keys, strict=False))
    return next((i for i, (a, b) in pairs if a != b), None)


def compare_pair(
    name: str, base: Answer, text: Answer, tolerance: float, shared: Set[str] = frozenset()
) -> Compared:
    """Compare a greedy text with its base: a BUG also if one is the beginning of the other.

    TIE: the text's token is as likely as the base's likeliest, or both are the two likeliest and at
    most `tolerance` apart. UNKNOWN: nothing is stated where they part, or the text's key is
    `shared` by several tokens. Where one has no keys, equal texts are IDENTICAL, others UNKNOWN.
    """
    if not base.keys or not text.keys:
        same = base.text == text.text
        return Compared(name, GreedyKind.IDENTICAL if same else GreedyKind.UNKNOWN)
    at = first_difference(base, text)
    if at is None:
        if len(base.keys) == len(text.keys):
            return Compared(name, GreedyKind.IDENTICAL)
        shorter = min(len(base.keys), len(text.keys))
        return Compared(name, GreedyKind.BUG, shorter)  # one text ends before the other
    row, key = resolve_distinct(base.stated[at]) if len(base.stated) > at else [], text.keys[at]
    if not row or key in shared:
        return Compared(name, GreedyKind.UNKNOWN, at, (base.keys[at], key))
    logprobs = dict(row)
    gap = row[0][1] - logprobs[key] if key in logprobs else None
    if gap == 0.0:  # the baseline did not emit the token that it states as likeliest
        return Compared(name, GreedyKind.TIE, at, (base.keys[at], key), gap, tolerance)
    pair = row[0][0], key
    kind = greedy_kind(pair, [listed for listed, _ in row[:2]], gap, tolerance)
    return Compared(name, kind, at, pair, gap, tolerance)


def resolve_distinct(row: Stated) -> Stated:
    """Return a row up to the first entry without a probability; of equal keys the first entry."""
    first: dict[str, float] = {}
    for key, logprob in resolve_row(row):
        first.setdefault(key, logprob)
    return list(first.items())


def third_is_a_bug(base: Answer) -> bool:
    """Return whether a row's third choice, planted mid-text, counts as a bug; True without one."""
    rows = [resolve_distinct(row) for row in base.stated[: len(base.keys)]]
    places = [i for i, row in enumerate(rows) if len(row) >= 3 and row[2][0] != base.keys[i]]
    if not places:
        return True
    at = places[len(places) // 2]
    planted = replace(base, keys=with_wrong_token(base.keys, at, rows[at][2][0]))
    return compare_pair("planted", base, planted, 0.0).kind is GreedyKind.BUG


def expect_rows(keys: Sequence[str], rows: Sequence[Stated]) -> Answer:
    """Return each row's likeliest token as a text; `keys[i]` if it ties or row i is empty."""
    likeliest = []
    for key, row in zip(keys, map(resolve_distinct, rows), strict=False):
        is_best = not row or dict(row).get(key) == row[0][1]
        likeliest.append((key, row[0][1] if row else UNLISTED) if is_best else row[0])
    names, logprobs = [key for key, _ in likeliest], [logprob for _, logprob in likeliest]
    return Answer("", names, logprobs, list(rows), None)


def expect_by_itself(text: Answer) -> Answer | None:
    """Return the text that a server's own statements make likeliest; None if it states none."""
    shared, pairs = shared_texts([text]), zip(text.stated, text.keys, strict=False)
    rows = [[] if key in shared else row for row, key in pairs]
    return expect_rows(text.keys, rows) if any(rows) else None


def expect_by_weights(
    weights: LocalModel, prompt: Sequence[int], text: Answer
) -> tuple[Answer | None, Answer]:
    """Return the text that the weights make likeliest after each prefix, and the text, by ids.

    The first states the likeliest tokens and the emitted one, the second nothing. Both end before
    the first ambiguous token; the first is None where no token is scored. DataError: the weights
    lack an id of the text, or one of its first 4 tokens is ambiguous.
    """
    ids = weights.tokens(text)
    listed = len(text.ids if text.ids is not None else text.keys)
    if any(i >= len(weights.texts) for i in ids) or len(ids) < min(4, listed):
        raise weights.another("its tokens are not in the vocabulary")
    keys, rows = [f"#{i}" for i in ids], []
    for row, emitted in zip(log_probs(weights.score(prompt, ids)), ids, strict=False):
        likeliest = dict.fromkeys([*np.argsort(-row)[:3].tolist(), emitted])
        rows.append([(f"#{i}", float(row[i])) for i in likeliest])
    by_id = replace(text, keys=keys[: len(rows)], ids=None, stated=[], spelled="")
    return expect_rows(keys, rows) if rows else None, by_id


def check_same_model(weights: LocalModel, pairs: Sequence[tuple[Answer | None, Answer]]) -> float:
    """Return the median nats between the server's and the weights' logarithms of greedy tokens.

    `pairs`, 1 or more, are of `expect_by_weights`; one without a first text counts as equal.
    DataError: too many nats, or too many tokens that the weights would not choose, show another
    model. Medians over texts decide: a bug may spoil a text.
    """
    measured = []
    for base, text in pairs:
        rows = zip(base.stated, text.keys, strict=True) if base else ()
        chosen = np.array([(dict(row)[key], row[0][1]) for row, key in rows] or [(0.0, 0.0)])
        lost = chosen[:, 1] - chosen[:, 0]
        stated = zip(text.own, chosen[:, 0].tolist(), strict=False)
        apart = [abs(lp - logprob) for lp, logprob in stated if lp > UNLISTED]
        measured.append(((lost == 0).mean(), lost.mean(), np.median(apart or [0.0])))
    same, lost_nats, nats = np.median(measured, axis=0).tolist()
    if nats > APART:
        raise weights.another(f"its greedy tokens are {nats:.2g} nats apart on the median")
    if same < AGREE or lost_nats > LOST:
        raise weights.another(
            f"it chooses {same:.0%} of the server's greedy tokens, and gives them {lost_nats:.2g} "
            "nats less than its own on the mean"
        )
    return float(nats)


def shared_texts(answers: Sequence[Answer]) -> set[str]:
    """Return the keys that several tokens may print, where an engine names tokens by their texts.

    Such a key is listed twice in a row, is part of a character, or is listed more than `SAME` from
    the emitted token's own probability. All keys of a row that is shorter than its answer's widest
    count, as it lost one of two entries, unless its probabilities add up to 1. Rows of tokens that
    are named by ids are skipped.
    """
    shared: set[str] = set()
    for answer in answers:
        widest = max(map(len, answer.stated), default=0)
        for row, key, emitted in zip(answer.stated, answer.keys, answer.own, strict=False):
            if BY_ID.fullmatch(key):
                continue
            listed = resolve_row(row)
            counts = Counter(text for text, _ in listed)
            shared |= {text for text, count in counts.items() if count > 1 or not is_whole(text)}
            is_stated = emitted != 0.0 and emitted > UNLISTED  # engines write 0 for none
            apart = [abs(logprob - emitted) for text, logprob in listed if text == key]
            shared |= {key} if is_stated and apart and min(apart) > SAME else set()
            if len(row) < widest and 1 - sum(chance(lp) for _, lp in listed) > ROUNDED:
                shared |= counts.keys()
    return shared

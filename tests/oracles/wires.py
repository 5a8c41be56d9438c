"""Honest servers whose rows come over all kinds of wires."""

import math
from dataclasses import dataclass

import numpy as np

from spsbench.serving.answers import Answer
from spsbench.serving.wire import TokenLogprob, order_row

END, LENGTH = 0, 64
PLACES = ("first", "last", "absent", "beside", "replacing the last")


def softmax(logits):
    law = np.exp(logits - logits.max(-1, keepdims=True))
    return law / law.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Wire:
    """How a server lists tokens.

    Args:
        place: of the emitted token, where it is none of the likeliest.
        cap: likeliest tokens in a list.
        digits: of a logarithm; None: all.
        size: of the vocabulary.
        flat: the tail has equal probabilities, and the head few different ones.
        ends: "listed", "left out" of the lists, or "masked": stated, and never drawn.
    """

    place: str
    cap: int
    digits: int | None
    size: int
    flat: bool
    ends: str

    @classmethod
    def drawn(cls, seed):
        rng = np.random.default_rng([7, seed])
        return cls(
            PLACES[rng.integers(len(PLACES))],
            int(rng.integers(1, 7)),
            [1, 2, 3, 4, None][rng.integers(5)],
            (24, 4096)[rng.integers(2)],
            bool(rng.integers(2)),
            ("listed", "left out", "masked")[rng.integers(3)],
        )


class WireServer:
    """Draws texts from a table, after token t by its row t % C, and lists them over a wire."""

    def __init__(self, wire, seed, table=3):
        self.wire, self.rng = wire, np.random.default_rng([11, seed])
        rng, classes = np.random.default_rng([table, wire.size]), min(wire.size, 64)
        logits = rng.normal(size=(classes, wire.size)) * (1.6 if wire.size == 24 else 2.6)
        if wire.flat:  # a head of three, in steps of half a nat; all others tie
            head = np.argsort(-logits, axis=1)[:, :3]
            tail = np.full_like(logits, -2.0 - 0.7 * math.log(wire.size / 24))
            np.put_along_axis(tail, head, rng.integers(-3, 1, head.shape) / 2, axis=1)
            logits = tail
        self.law = softmax(logits)
        drawn, seen = self.law.copy(), self.law.copy()
        if wire.ends == "masked":
            drawn[:, END] = 0.0
        if wire.ends == "left out":
            seen[:, END] = -1.0
        self.cdf = drawn.cumsum(1)
        self.best = np.argsort(-seen, axis=1, kind="stable")[:, : wire.cap].tolist()
        self.rows: dict[tuple[int, int], tuple[float, list]] = {}

    def listed(self, row, token):
        """The emitted token's logarithm where it stands beside the row, and the row as read."""
        if (row, token) not in self.rows:
            wire, best = self.wire, list(self.best[row])
            if token not in best:
                if wire.place == "first":
                    best = [token, *best]
                elif wire.place == "last":
                    best = [*best, token]
                elif wire.place == "replacing the last":
                    best = [*best[:-1], token]
            digits = wire.digits if wire.digits is not None else 12
            state = [round(math.log(self.law[row, i]), digits) for i in best]
            entries = [TokenLogprob(token=str(i), id=i, logprob=x) for i, x in zip(best, state)]  # noqa: B905
            own = round(math.log(self.law[row, token]), digits)
            self.rows[row, token] = (own if wire.place == "beside" else 0.0, order_row(entries))
        return self.rows[row, token]

    def text(self, greedy=False):
        """An answer; it ends where the end is drawn, which no row lists then."""
        token, ids, own, rows = int(self.rng.integers(1, self.wire.size)), [], [], []
        for u in self.rng.random(LENGTH):
            row = token % len(self.cdf)
            token = int(np.searchsorted(self.cdf[row], u * self.cdf[row, -1], side="right"))
            token = self.best[row][0] if greedy else token
            if token == END and self.wire.ends == "left out":
                break
            logprob, listed = self.listed(row, token)
            ids.append(token)
            own.append(logprob)
            rows.append(listed)
        return Answer("", [f"#{i}" for i in ids], own, rows, "length", ids=ids)

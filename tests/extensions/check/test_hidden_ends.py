"""Honest servers whose engine leaves the ends of texts out are not accused, at the stated level."""

import math
from itertools import product

import numpy as np
import pytest

from spsbench.extensions.check.bets import ServerAudit
from spsbench.extensions.check.columns import Columns
from tests.variants import first

END, STOP = 0, 1  # the end of a text; the token after which it mostly comes
LENGTH = 64
KINDS = ("branch .1", "branch .2", "branch .3", "dense", "rare", "line")
SEED = 20


def softmax(logits):
    law = np.exp(logits - logits.max(-1, keepdims=True))
    return law / law.sum(-1, keepdims=True)


def laws(kind, size):
    """Return the distributions [C, V] after token t of class t % C; END ends a text."""
    rng = np.random.default_rng(5)
    classes = min(size, 64)
    dense = rng.normal(size=(classes, size)) * (1.6 if size == 24 else 2.6)
    dense[:, [END, STOP]] = -40
    dense = softmax(dense)
    if kind.startswith("branch"):
        law = np.full((classes, size), 0.01 / (size - 1))
        law[:, END] = 0
        for token in range(2, classes):
            law[token, token + 1 if token % 11 != 1 and token + 1 < classes else STOP] = 0.99
        law[STOP] = 0.0 if size == 24 else 0.2 * dense[3]
        law[STOP, [2, 13, 5, 16]] += np.array([0.5, 0.3, 0.15, 0.05]) * (1 if size == 24 else 0.8)
        ends = float(kind.split()[1])
    else:
        law = dense.copy()
        if kind == "line":
            for token in np.flatnonzero(np.arange(classes) % 3):
                law[token] *= 0.04
                law[token, 2 + (7 * token + 3) % (size - 2)] += 0.96
        law *= 1 - 1 / 12
        law[:, STOP] = 1 / 12
        law[STOP] = dense[STOP]
        ends = {"dense": 0.35, "line": 0.5, "rare": 0.0}[kind]
        if kind == "rare":
            law *= 1 - 0.004
            law[:, END] = 0.004
    law[STOP] *= 1 - ends
    law[STOP, END] += ends
    return law / law.sum(1, keepdims=True)


class Server:
    def __init__(self, law, rng, top, lists_end=True, masks_end=False):
        self.rng, self.top = rng, top
        drawn = law.copy()
        if masks_end:
            drawn[:, END] = 0.0
        self.cdf = drawn.cumsum(1)
        seen = law.copy()
        if not lists_end:
            seen[:, END] = -1.0
        self.best = np.argsort(-seen, axis=1, kind="stable")[:, :top]
        self.mass = np.take_along_axis(law, self.best, 1)
        self.keys = [[f"#{i}" for i in row] for row in self.best]
        self.column = [{int(token): i for i, token in enumerate(row)} for row in self.best]

    def text(self):
        token = int(self.rng.integers(2, self.cdf.shape[1]))
        rows, tokens = [], []
        for u in self.rng.random(LENGTH):
            row = token % len(self.cdf)
            token = int(np.searchsorted(self.cdf[row], u * self.cdf[row, -1], side="right"))
            if token == END:
                break
            rows.append(row)
            tokens.append(token)
        own = [
            self.column[row].get(token, self.top) for row, token in zip(rows, tokens, strict=True)
        ]
        return Columns(
            [self.keys[row] for row in rows],
            self.mass[rows].reshape(-1, self.top),
            np.array(own, np.int64),
            [f"#{token}" for token in tokens],
        )


def peak(kind, size, seed, tokens, **more):
    server = Server(
        laws(kind, size), np.random.default_rng([SEED, seed]), 5 if size == 24 else 10, **more
    )
    arm = ServerAudit("honest", hides=True)
    while arm.tokens < tokens:
        arm.take_text(server.text())
    return math.exp(arm.peak)


@pytest.mark.parametrize(("seed", "masks_end"), first(2, [(0, False), (0, True), (1, False)]))
def test_an_honest_server_with_concentrated_hidden_ends_is_not_accused(seed, masks_end):
    assert peak("branch .3", 24, seed, 6000, masks_end=masks_end) < 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_honest_servers_alarm_no_more_often_than_the_level():
    cells = list(product(KINDS, (24, 4096), (True, False)))
    checks = [(*cells[seed % len(cells)], seed) for seed in range(1000)]
    peaks = np.array(
        [peak(kind, size, seed, 1500, lists_end=lists) for kind, size, lists, seed in checks]
    )
    assert np.mean(peaks >= 20) <= 0.05
    assert np.mean(peaks >= 1000) <= 0.001

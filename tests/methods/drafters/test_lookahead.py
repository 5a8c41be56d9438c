"""Lookahead: the target's own choices in a window become n-grams, which are drafted later."""

import torch

from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits, Scores
from spsbench.methods.drafters.lookahead import LookaheadDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from tests.methods.drafters.asked import PREFILL, asked

VOCAB = 50


def successor(token):
    return (3 * token + 1) % VOCAB


class Successors:
    """A session whose likeliest next token depends on the newest one alone; it notes its passes."""

    vocab_size, limit = VOCAB, None

    def __init__(self):
        self.length, self.rows = 0, []

    def append(self, tokens, keep, parents=None):
        self.length += len(tokens)
        self.rows.append(len(tokens))
        logits = torch.zeros(keep, VOCAB)
        for row, token in zip(logits, tokens[len(tokens) - keep :].tolist(), strict=True):
            row[successor(token)] = 9.0
        return Scores(logits, {})

    def commit(self, length, path=None):
        self.length = length + len(path or ())


class Seen(Match):
    """One-sample match that notes the drafts it is offered."""

    def __init__(self):
        self.offered = []

    def __call__(self, draft, q, noise):
        self.offered.append(draft)
        assert len(q) == len(draft.tokens) + 1
        return super().__call__(draft, q, noise)


def text(drafter, tokens=40, k=3):
    session, verifier = Successors(), Seen()
    rounds = list(
        decode(
            [5, 7],
            target=session,
            drafter=drafter,
            verifier=verifier,
            schedule=Constant(k),
            warp=Warp(temperature=0.0),
            noise=PhiloxStream(0),
            limits=Limits(tokens),
        )
    )
    return [t for turn in rounds for t in turn.tokens], rounds, session, verifier


def test_k_and_nodes_bound_what_is_drafted_and_scored():
    drafter = LookaheadDrafter(w=3, n=2)
    drafter.begin([1], PREFILL)
    assert len(asked(drafter, [1], 0).tokens) == 0
    assert len(asked(drafter, [1], 2, nodes=2).tokens) == 0  # no room for the window of 3
    assert len(asked(drafter, [1], 2, nodes=3).tokens) == 3


def test_its_own_n_grams_come_true_in_a_text_that_repeats():
    plain, *_ = text(LookaheadDrafter(w=1, n=2), k=0)
    made, rounds, session, verifier = text(LookaheadDrafter(w=4, n=4))
    assert made == plain
    assert len(rounds) < 0.7 * len(plain)
    drafted = [turn.drafted for turn in rounds]
    assert session.rows[1:] == [n + 1 for n in drafted]  # what is only scored is counted
    assert max(drafted) > max(len(draft.tokens) for draft in verifier.offered)
    assert not any(draft.scored_only for draft in verifier.offered)
    assert all(turn.depth <= 3 for turn in rounds)

"""Logs replayed against rounds that were really made, and against the replay of traces."""

import random

import numpy as np
import pytest

from spsbench.audit.exact.tables import TableLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.methods.drafters.copy import CopyDrafter
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.ngram import NgramDrafter, look_ups
from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.verifiers.match import Match
from spsbench.planning.forecast.rounds import Acceptances, room_of, rounds
from spsbench.planning.logs.texts import NO_PREFILL
from tests.decoding import output, rounds_of

VOCAB = 6
KS = (1, 2, 3, 5, 8)
DRAFTERS = {
    "ngram": NgramDrafter,
    "first": lambda: NgramDrafter(match="first"),
    "frequent": lambda: NgramDrafter(n=2, match="frequent"),
    "copy": CopyDrafter,
    "suffix": SuffixDrafter,
    "deep": lambda: SuffixDrafter(factor=3.0, least=0.0),
    "hybrid": lambda: HybridDrafter(
        SuffixDrafter(), NgramDrafter(n=2, min_n=1), least=2, vocab_size=VOCAB
    ),
}


def table(seed):
    """A law of the last three tokens, in which texts repeat themselves with slips."""
    rows = {}

    def law(path):
        key = path[-3:]
        if key not in rows:
            draw = random.Random(f"{seed}/{key}")
            weights = [draw.random() ** 8 + 1e-6 for _ in range(VOCAB)]
            rows[key] = tuple(weight / sum(weights) for weight in weights)
        return rows[key]

    return law


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_rounds_of_a_rule_are_those_that_the_loop_makes(name, temperature):
    prompt = [1, 2, 3, 1, 2, 4, 1, 2]
    for seed in range(2):
        for k in KS:
            target = TableLM(table(seed), VOCAB)
            parts = {"verifier": Match(), "warp": Warp(temperature), "noise": PhiloxStream(seed)}
            made = rounds_of(target, DRAFTERS[name](), 40, prompt=prompt, k=k, **parts)
            text = output(made)
            drafter = DRAFTERS[name]()
            drafter.begin(prompt, NO_PREFILL)
            proposed, hits = look_ups(drafter.proposals, [*prompt, *text], len(prompt), KS)
            acceptances = Acceptances.deterministic(hits[KS.index(k)], proposed[KS.index(k)], k)
            found = rounds(acceptances, k, room_of(len(text), 40))
            assert found.starts.tolist() == [0, *np.cumsum([len(d.tokens) for d in made])[:-1]]
            assert found.drafted.tolist() == [done.drafted for done in made]
            kept, tested = (slots.sum(1).tolist() for slots in found.slots)
            assert kept == [done.accepted for done in made]
            assert tested == [min(done.accepted + 1, done.drafted) for done in made]

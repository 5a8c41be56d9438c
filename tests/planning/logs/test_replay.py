"""Logs replayed against rounds that were really made, and against the replay of traces."""

import random

import numpy as np
import pytest

from spsbench.audit.exact.tables import TableLM
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.methods.drafters.copy import CopyDrafter
from spsbench.methods.drafters.hybrid import HybridDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.verifiers.match import Match
from spsbench.planning.forecast.rounds import Coins, room_of, rounds
from spsbench.planning.logs.prices import Ratios
from spsbench.planning.logs.replay import NO_PREFILL, Agreement, Method, Replay, looked_up
from spsbench.planning.logs.rounds import chain, walk
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
            (along,) = [looked_up(drafter, prompt, text, KS)[KS.index(k)]]
            found = rounds(Coins.by_rule(*along, k), k, room_of(len(text), 40))
            assert found.starts.tolist() == [0, *np.cumsum([len(d.tokens) for d in made])[:-1]]
            assert found.drafted.tolist() == [done.drafted for done in made]
            assert found.slots()[0].sum(1).tolist() == [done.accepted for done in made]


def test_the_suffix_of_another_k_may_begin_otherwise():
    """One chain for all K would be wrong: what is best for K = 8 need not begin what is for 1."""
    differs = 0
    for seed in range(40):
        draw = random.Random(seed)
        text = [draw.randrange(3) for _ in range(60)]
        drafter = SuffixDrafter(factor=3.0, least=0.0)
        drafter.begin([0], NO_PREFILL)
        for end in range(1, 60):
            short, long = drafter.proposals(text[:end], (1, 8))
            alone = SuffixDrafter(factor=3.0, least=0.0)
            alone.begin([0], NO_PREFILL)
            assert list(short[:1]) == list(alone.proposals(text[:end], (1,))[0][:1])
            differs += list(short[:1]) != list(long[:1])
    assert differs


def test_sums_are_over_requests():
    sums = Replay((2,), [Ratios(row=0.5)])
    for number, agree in enumerate(([2, 0, 0, 0], [0, 0, 0, 0])):
        sums.count([0] * 4)
        along = [([*agree], [2, 2, 2, 2])]
        sums.add_rule(
            Method("ngram", "any exact"), [Agreement(*along[0])], 10, str(number), "ab"[number]
        )
    (found,) = sums.sums[Method("ngram", "any exact")]
    assert found.emitted == 8
    assert found.tau().mean == pytest.approx(8 / (2 + 4))
    assert found.drafted == 2
    assert found.speedup(0).mean == pytest.approx(8 / (6 * 2.0))  # two rows of half a pass each
    assert found.kept_share == pytest.approx(2 / 10)  # two slots are beyond the ends of the texts
    assert found.acceptance_length == pytest.approx(1 + 2 / 6)
    assert [e.request for e in found.most] == ["1", "0"]
    assert found.by_group["a"].tolist() == [4, 2]


def test_many_requests_share_sums(monkeypatch):
    monkeypatch.setattr("spsbench.planning.logs.replay.CLUSTERS", 100)
    sums = Replay((1,))
    for number in range(110):
        sums.add_rule(Method("n", "any exact"), [Agreement([1, 0], [1, 1])], 0, str(number), None)
    (found,) = sums.sums[Method("n", "any exact")]
    assert len(found.rows) == 100
    assert found.emitted == 220
    assert found.tau().mean == 2


def test_slots_beyond_the_end_of_a_text_are_drafted_and_not_tested():
    found = walk([0, 1, 0], [3, 3, 3], 3)
    assert found.starts.tolist() == [0, 1]
    assert found.drafted.tolist() == [3, 3]
    assert found.within.tolist() == [3, 2]
    assert found.tested.tolist() == [2, 1, 0]
    assert found.kept.tolist() == [1, 0, 0]
    assert chain(np.zeros((2, 3)), 3).within.tolist() == [2, 1]


class ByContext:
    """A round costs as many passes as there are tokens before it."""

    batch, words = 1, ""

    def rounds(self, drafter, rule, k, context):
        return np.full(k + 1, context)


def test_rounds_are_priced_in_the_middle_of_the_answer():
    sums = Replay((1,), [ByContext()])
    along = Agreement([0] * 1024, [0] * 1024)
    sums.add_rule(Method("n", "any exact"), [along], 512, "a", None)
    ((found,),) = sums.sums.values()
    assert 1 / found.speedup(0).mean == pytest.approx(512 + 1024 // 2, abs=128)

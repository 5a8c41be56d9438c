"""Schedules that stop by the distribution of a slot: confidence, entropy, disco."""

import math

import pytest
import torch

from spsbench.audit.exact.tables import TableLM, ToyPair
from spsbench.loop.decode import NonFiniteError
from spsbench.loop.sampling import Warp, confidence_probs
from spsbench.loop.types import Round
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_distribution import Confidence, Disco, Entropy
from tests.decoding import rounds_of

SURE, FLAT = torch.tensor([0.98, 0.01, 0.01]), torch.tensor([0.4, 0.3, 0.3])
STOPPING = [Confidence(0.5), Entropy(0.6), Disco(t=0.5, bias=0.0, entropy=-1.0, peak=2.0)]
stopping = pytest.mark.parametrize("schedule", STOPPING, ids=lambda s: type(s).__name__)


@stopping
def test_a_sure_slot_is_drafted_and_a_flat_one_is_not(schedule):
    assert schedule.k([]) == 20
    assert [bool(schedule.go_on(law)) for law in (SURE, FLAT)] == [True, False]
    assert schedule.go_on(SURE).shape == ()


@stopping
def test_a_distribution_that_is_no_number_goes_on_and_is_reported_by_the_loop(schedule):
    schedule.k([])
    assert bool(schedule.go_on(torch.full((3,), torch.nan)))

    class Broken(TableLM):
        def append(self, *given, **more):
            return super().append(*given, **more)._replace(logits=torch.full((1, 3), torch.nan))

    pair = ToyPair(3, 2, ("plain",))
    drafter = ModelDrafter(Broken(pair.p, 3))
    with pytest.raises(NonFiniteError):
        rounds_of(TableLM(pair.q, 3), drafter, 6, prompt=(0, 1), schedule=schedule, warp=Warp())


def test_disco_counts_the_slots_of_a_round():
    law = torch.tensor([0.9, 0.1])
    schedule = Disco(t=0.3, bias=2.0, entropy=0.0, peak=0.0, slot=-1.0)
    for _ in range(2):  # rounds
        schedule.k([])
        reached, answers = 1.0, []
        for slot in range(4):
            reached /= 1 + math.exp(-(2.0 - slot))
            answers.append(reached >= 0.3)
        assert [bool(schedule.go_on(law)) for _ in range(4)] == answers == [True] * 3 + [False]


def test_the_threshold_of_entropy_follows_what_was_kept():
    lost, kept = ([Round(4, 1 + 3 * a, 4 * a, [0], None, 0.1, None)] * 30 for a in (0, 1))
    schedule = Entropy(t=0.5, step=0.01)
    law = torch.tensor([0.8, 0.2])  # 1 - sqrt(0.2 * 0.5004) = 0.684
    for history, expected in (([], True), (lost, False), (kept, True)):
        schedule.k(history)
        assert bool(schedule.go_on(law)) is expected
    steady = Entropy(t=0.5, step=0.0)
    steady.k(lost)
    assert bool(steady.go_on(law))


def test_at_temperature_0_they_see_the_distribution_before_the_cut():
    logits = torch.tensor([[1.0, 0.9, 0.8]])
    for warp, sure in ((Warp(0.0), False), (Warp(0.05), True)):
        law = warp(logits)[0]
        assert bool(Confidence(0.6).go_on(confidence_probs(warp, logits[0], law))) is sure
    assert confidence_probs(Warp(0.5), logits, law) is law
    pair = ToyPair(3, 5, ("plain",))

    def drafted(schedule):
        drafter = ModelDrafter(TableLM(pair.p, 3))
        rounds = rounds_of(TableLM(pair.q, 3), drafter, 12, prompt=(0, 1, 2), schedule=schedule)
        return [turn.drafted for turn in rounds]

    assert max(drafted(Confidence(0.5))) < max(drafted(Confidence(0.0)))

"""Schedules that stop by the law of a slot: confidence, entropy, disco."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from spsbench.audit.exact.tables import Pair, TableLM
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.loop.decode import NonFiniteError
from spsbench.loop.sampling import Warp, unsharpened
from spsbench.loop.types import Round
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.by_distribution import Confidence, Disco, Entropy
from spsbench.metrics.classifier import (
    Classifier,
    drafted_slots,
    fit,
    read_classifier,
    write_classifier,
)
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
def test_a_law_that_is_no_number_goes_on_and_is_reported_by_the_loop(schedule):
    schedule.k([])
    assert bool(schedule.go_on(torch.full((3,), torch.nan)))

    class Broken(TableLM):
        def append(self, *given, **more):
            return super().append(*given, **more)._replace(logits=torch.full((1, 3), torch.nan))

    pair = Pair(3, 2, ("plain",))
    drafter = ModelDrafter(Broken(pair.p, 3))
    with pytest.raises(NonFiniteError):
        rounds_of(TableLM(pair.q, 3), drafter, 6, prompt=(0, 1), schedule=schedule, warp=Warp())


def test_disco_stops_by_the_product_over_the_slots():
    schedule = Disco(t=0.5, bias=0.0, entropy=-1.0, peak=2.0)
    by = Classifier(0.0, -1.0, 2.0)
    law = torch.tensor([0.9, 0.1])
    one = float(by.chances(np.array([0.325083]), np.array([0.9]))[0])
    schedule.k([])
    answers = [bool(schedule.go_on(law)) for _ in range(4)]
    assert answers == [one**i >= 0.5 for i in range(1, 5)]
    assert answers == [True, True, True, False]
    schedule.k([])  # the next round begins anew
    assert bool(schedule.go_on(law))


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


def test_slots_of_a_trace_come_with_their_chances():
    kept = [Fraction(1, 2), Fraction(3, 4), Fraction(1, 3)]
    begins = [Fraction(1), 1 - kept[0]]  # slot 0 rejected
    begins.append(kept[0] * (1 - kept[1]) + begins[1] * (1 - kept[1]))
    expected = {
        (0, 0): begins[0],
        (1, 1): begins[0] * kept[0],
        (2, 2): begins[0] * kept[0] * kept[1],
        (1, 0): begins[1],
        (2, 1): begins[1] * kept[1],
        (2, 0): begins[2],
    }
    positions, slots, weights = drafted_slots(np.array([*map(float, kept)] * 2), [3, 3])
    found = dict(zip(zip(positions.tolist(), slots.tolist(), strict=True), weights, strict=True))
    second = {(position + 3, slot): chance for (position, slot), chance in expected.items()}
    chances = {key: float(chance) for key, chance in (expected | second).items()}
    assert found == pytest.approx(chances)


def test_a_fit_finds_that_late_slots_stand_in_easy_text():
    easy = np.tile(np.repeat([0.95, 0.3], 10), 20)  # stretches that the features do not tell
    values = fit(np.ones(400), np.ones(400), easy).classifier
    assert values.slot > 0.1
    alike = fit(np.ones(400), np.ones(400), np.full(400, 0.6)).classifier
    assert alike.slot == pytest.approx(0, abs=1e-6)


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


def test_at_temperature_0_they_see_the_law_before_the_cut():
    logits = torch.tensor([[1.0, 0.9, 0.8]])
    for warp, sure in ((Warp(0.0), False), (Warp(0.05), True)):
        law = warp(logits)[0]
        assert bool(Confidence(0.6).go_on(unsharpened(warp, logits[0], law))) is sure
    assert unsharpened(Warp(0.5), logits, law) is law
    pair = Pair(3, 5, ("plain",))

    def drafted(schedule):
        drafter = ModelDrafter(TableLM(pair.p, 3))
        rounds = rounds_of(TableLM(pair.q, 3), drafter, 12, prompt=(0, 1, 2), schedule=schedule)
        return [turn.drafted for turn in rounds]

    assert max(drafted(Confidence(0.5))) < max(drafted(Confidence(0.0)))


def made(positions=4000):
    dice = np.random.default_rng(0)
    entropies, peaks = dice.uniform(0, 3, positions), dice.uniform(0, 1, positions)
    return entropies, peaks, Classifier(0.4, -1.3, 2.2).chances(entropies, peaks)


def test_a_fit_finds_what_made_the_trace(tmp_path):
    found = fit(*made())
    values = found.classifier
    assert (values.bias, values.entropy, values.peak) == pytest.approx((0.4, -1.3, 2.2), abs=1e-3)
    assert values.slot == pytest.approx(0, abs=1e-3)
    assert found.loss < found.plain
    coins = np.random.default_rng(1).random(4000) < made()[2]
    noisy = fit(*made()[:2], coins).classifier
    assert noisy.entropy == pytest.approx(-1.3, abs=0.25)
    write_classifier(tmp_path / "c.json", found)
    assert read_classifier(tmp_path / "c.json") == values
    disco = Disco(path=str(tmp_path / "c.json"), t=0.3)
    disco.k([])
    p = torch.tensor([0.7, 0.3])
    entropy = float(torch.special.entr(p).sum())
    assert bool(disco.go_on(p)) == bool(values.chances(np.array([entropy]), np.array([0.7])) > 0.3)


def test_what_cannot_be_fitted_read_or_written_is_refused(tmp_path):
    entropies, peaks, kept = made(200)
    for wrong in (
        (entropies[:99], peaks[:99], kept[:99]),  # too few
        (np.full(200, np.nan), peaks, kept),
        (entropies, peaks, kept + 1),
    ):
        with pytest.raises(UsageError):
            fit(*wrong)
    for number, text in enumerate(("", "[]", "{}", json.dumps({"kind": "spsbench costs"}))):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        with pytest.raises(DataError):
            read_classifier(file)
    with pytest.raises(MissingError):
        write_classifier(tmp_path / "none" / "c.json", fit(entropies, peaks, kept))

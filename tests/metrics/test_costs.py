"""The arithmetic of costs: parts add up, drift cancels, what is unknown is refused."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from spsbench.errors import DataError, MissingError
from spsbench.metrics.costs import PARTS, PLAIN, BatchCosts, Costs, line
from spsbench.metrics.costs_file import dumps, loads, read_costs, to_json
from spsbench.metrics.sums import AT, Tally, Totals
from spsbench.metrics.surfaces import FEWEST_TURNS, Surface, typical
from tests.oracles.forecasts import NGRAM, SMALL, costs, drafts, surface


def test_parts_add_up():
    parts = np.median(costs().round(SMALL, 4, 4, 152), 1)
    assert parts == pytest.approx([8, 9 + 5 + 0.52, 0.5, 0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    ("tokens", "context", "seconds"),
    [
        (1, 100, 10),
        (3, 100, 12),  # between two points
        (7, 150, 16.5),
        (13, 100, 22),  # beyond the last goes on with the line
        (1, 300, 12),
        (1, 40, 10),  # a short context costs what the first does
        (0, 100, 9),
    ],
)
def test_between_and_beyond_points(tokens, context, seconds):
    assert costs().target(tokens, context).value == pytest.approx(seconds)


def test_what_falls_is_not_followed_beyond_the_last_point():
    falls = surface(lambda n, context: 10.0 - n)
    assert falls.at(30, 100).tolist() == [1.0] * 8
    rises = surface(lambda n, context: 3.0 * n - 2)
    assert rises.at(0, 100).tolist() == [0.0] * 8  # nor below nothing
    assert rises.held(0, 100).tolist() == [1.0] * 8
    assert rises.held(99, 999).tolist() == [25.0] * 8


def test_drift_cancels_in_ratios_but_not_in_seconds():
    """Turns of a machine that becomes slower."""
    slow = [1.0, 1.1, 1.3, 1.2, 1.6, 1.5, 1.9, 2.0]
    made = costs(passes=surface(lambda n, context: 9.0 + n, slow=slow))
    ratio = made.relative(SMALL, 4, 100)
    drifting = costs(passes=made.passes, arms={SMALL: drafts(2.0, slow=slow)})
    same = drifting.relative(SMALL, 4, 100)
    assert same.low == pytest.approx(same.high) == pytest.approx(0.2)
    assert ratio.high / ratio.low > 1.5
    seconds = made.target(5, 100)
    assert seconds.high / seconds.low > 1.5


def test_intervals_hold_the_true_median():
    """95 % and more of them, of a skewed distribution; those of a rank further in do not."""
    draw = random.Random(1)
    held = tight = 0
    for _ in range(2000):
        values = np.array([draw.expovariate(1) for _ in range(11)])
        found = typical(values)
        held += found.low <= math.log(2) <= found.high
        ordered = np.sort(values)
        tight += bool(ordered[2] <= math.log(2) <= ordered[-3])
    assert held / 2000 > 0.95
    assert tight / 2000 < 0.95


def test_few_turns_and_busy_ones():
    values = np.array([3.0, 1.0, 2.0, 9.0, 4.0])
    assert typical(values) == (3, 1, 9)
    many = np.concatenate([np.arange(1.0, 21.0), [99.0]])
    quiet, busy = typical(many), typical(many, busy=True)
    assert busy.low == 1 < quiet.low
    assert quiet.high < busy.high < 99
    assert FEWEST_TURNS == 6


def test_as_if():
    made = costs()
    half = made.scaled(draft=0.5, target=2.0)
    draft, target, _, _, _, unexplained = np.median(half.round(SMALL, 4, 4, 96), 1)
    assert (draft, target) == pytest.approx((4, 28.08))
    assert unexplained == 0.5  # as it was measured
    assert half.scaled(draft=0.5).changed == {"draft": 0.25, "target": 2.0}
    assert made.changed == {}


@pytest.mark.parametrize("factors", [{"drafts": 1.0}, {"draft": 0.0}, {"draft": math.nan}])
def test_as_if_of_nothing_there_is(factors):
    with pytest.raises(DataError):
        costs().scaled(**factors)


def test_unknown_names_are_told():
    with pytest.raises(DataError):
        costs().relative("model big", 4, 100)


def test_a_file_holds_all_of_it():
    made = costs(busy=True, weights=10).scaled(draft=0.5)
    again = loads(dumps(made), "here")
    assert to_json(again) == to_json(made)
    assert again.target(3, 120) == made.target(3, 120)


def test_a_damaged_file_is_refused(tmp_path):
    text = dumps(costs())
    for broken in (text[:-2], "[]", text.replace('"version": 1', '"version": 2')):
        with pytest.raises(DataError):
            loads(broken, "here")
    path = tmp_path / "costs.json"
    with pytest.raises(MissingError):
        read_costs(path)
    path.write_text(text)
    assert read_costs(path).turns == 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda costs: costs["passes"]["seconds"][0][0].__setitem__(0, 0.0),
        lambda costs: costs["passes"]["seconds"][0][0].__setitem__(0, None),
        lambda costs: costs["arms"]["none"]["draft"]["seconds"].pop(),
        lambda costs: costs["arms"]["none"].pop("draft"),
        lambda costs: costs.update(busy="x"),
    ],
    ids=["no time", "no number", "turns", "fields", "types"],
)
def test_a_table_that_cannot_be_is_refused(damage):
    values = json.loads(dumps(costs()))
    damage(values["costs"])
    with pytest.raises(DataError):
        loads(json.dumps(values), "here")


def test_a_surface_is_a_grid():
    with pytest.raises(ValueError):
        Surface((1, 2), (100,), np.ones((3, 1, 1)))
    with pytest.raises(ValueError):
        Surface((2, 1), (100,), np.ones((3, 2, 1)))


def test_ratios_price_drafted_tokens_and_further_rows_in_plain_passes():
    by_hand = Costs.of_ratios(0.05, {SMALL: 0.1, NGRAM: 0.0})
    assert by_hand.round(PLAIN, 0, 0, 500).sum(0) == pytest.approx([1.0])
    assert by_hand.round(SMALL, 4, 4, 500).sum(0) == pytest.approx([1 + 4 * 0.1 + 4 * 0.05])
    assert by_hand.round(NGRAM, 4, 2, 500).sum(0) == pytest.approx([1 + 2 * 0.05])
    assert by_hand.round(SMALL, 4, 0, 500).sum(0) == pytest.approx([1 + 4 * 0.1])


def test_a_round_with_a_draft_takes_as_long_as_a_plain_one_at_least():
    arms = {PLAIN: drafts(0.0, verifier="match"), SMALL: drafts(2.0, fixed=-6.0)}
    measured = costs(arms=arms)
    plain = np.median(measured.round(PLAIN, 0, 0, 150).sum(0))
    cheap = costs(arms=arms, passes=measured.passes.times(1e-3))
    assert np.median(cheap.round(SMALL, 1, 1, 150).sum(0)) >= np.median(
        cheap.round(PLAIN, 0, 0, 150).sum(0)
    )
    looked_for = measured.round(SMALL, 4, 0, 150).sum(0)
    assert np.median(looked_for) == pytest.approx(plain + 4 * 2.0)


def test_a_draft_that_finds_nothing_in_a_batch_costs_its_median_of_other_turns():
    alone = costs(arms={PLAIN: drafts(0.0), "ngram": drafts(2.0)})
    size = surface(lambda n, context: 9.0 + n, slow=[1.0] * 5)
    batches = BatchCosts(sizes=(1,), passes=(size,), rest={PLAIN: (size.times(0.1),)}, cached=1)
    both = replace(alone, batches=batches)
    plain, empty = (both.round(name, k, 0, 100, batch=2) for name, k in ((PLAIN, 0), ("ngram", 4)))
    assert empty.shape == plain.shape == (len(PARTS), 5)
    assert (empty - plain).sum(0).tolist() == pytest.approx([8.0] * 5)


def test_a_free_look_up_of_one_turn_goes_with_a_measured_table():
    table = costs()
    free = replace(table.drafter(PLAIN), draft=line(0.0, 0.0))
    priced = replace(table, arms={**table.arms, "look-up": free})
    plain, looked_up = priced.round(PLAIN, 0, 0, 100), priced.round("look-up", 4, 0, 100)
    assert looked_up.tolist() == plain.tolist()
    assert (priced.round("look-up", 4, 4, 100)[0] == 0).all()


def test_expected_rounds_of_one_key_share_a_row():
    tally = Tally(slots=2, horizon=128, k=2)
    sums = Totals(tokens=4, rounds=2.5, drafted=5, accepted=1.5, kept=1.5, tested=2.5)
    for key in ((0, 0), (1, 0), (0, 0)):
        tally.add_expected(key, sums, [0.5] * 4, [1.0] * 2)
    assert tally.rows[:, AT["rounds"]] == pytest.approx([5.0, 2.5])
    assert tally.rows[:, len(AT)] == pytest.approx([1.0, 0.5])

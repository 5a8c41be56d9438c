"""What a person is told to try, and when nothing is said."""

import pytest

from spsbench.cli.answers import advice
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.rates import metrics
from spsbench.pair.text import Comparison, Text
from spsbench.settings.grid import make_cell
from spsbench.settings.records import Record, RoundRecord


def arm(drafted, rounds, *, by_rule=True, k=4):
    done = [RoundRecord(drafted, drafted and 1, 0, 1, 0.0, 0.1, 0.0, 0.1)] * rounds
    record = Record(
        prompt_tokens=3,
        tokens=[1] * rounds,
        text="",
        finish="length",
        prefill_seconds=0.1,
        rounds=done,
    )
    return Text(make_cell(target="nano", k=k), record, metrics(done, 0.1), by_rule)


def compared(low, high):
    one = arm(4, 20, by_rule=False)
    return Comparison(one, one, Estimate(0.32, low, high, 8), None, None)


def test_a_lookup_that_finds_nothing():
    (line,) = advice(arm(0, 128), None)
    assert line.startswith("prompt lookup found nothing to draft in 128 rounds")
    assert "--draft" in line


@pytest.mark.parametrize(
    "silent",
    [
        arm(2, 128),
        arm(0, 3),  # too short a text to say
        arm(0, 128, by_rule=False),
        arm(0, 128, k=0),  # as it was asked to
    ],
    ids=["drafts", "short", "sampled", "k0"],
)
def test_nothing_to_say(silent):
    assert list(advice(silent, None)) == []


def test_a_draft_that_slows_down():
    comparison = compared(0.25, 0.4)
    (line,) = advice(comparison.sps, comparison)
    assert line.startswith("slower than without a draft (0.32x)")
    for open_question in (compared(0.25, 1.1), compared(None, None)):
        assert list(advice(comparison.sps, open_question)) == []
    too_short = comparison._replace(speedup=None)
    assert list(advice(comparison.sps, too_short)) == []

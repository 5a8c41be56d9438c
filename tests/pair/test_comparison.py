"""Results as plain values: the speed-up of two texts of one prompt, and the rows of a run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.benchmark.run import Run
from spsbench.cli.answers import advice
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.rates import generation_metrics
from spsbench.metrics.summaries import summaries
from spsbench.pair.text import BUSY, Comparison, Text, gain
from spsbench.reports.reporter import Report, Title
from spsbench.reports.run_tables import make_table
from spsbench.settings.cell import Cell
from spsbench.settings.grid import make_request
from spsbench.settings.records import Record, RoundRecord
from tests.simulation import cell, run


def arm(*emitted, seconds):
    """Rounds that emit so many tokens each."""
    rounds = [RoundRecord(n - 1, n - 1, n - 1, n, 0.0, seconds, 0.0, seconds) for n in emitted]
    record = Record(
        prompt_tokens=3,
        tokens=[1] * sum(emitted),
        text="",
        finish="length",
        prefill_seconds=0.1,
        rounds=rounds,
    )
    return Text(
        Cell.from_request(make_request(target="nano", k=4)),
        record,
        generation_metrics(rounds, 0.1),
        False,
    )


def told(ars, sps):
    return Comparison(ars, sps, gain(ars, sps), None, None).lines()[0]


def test_a_lookup_without_drafts_and_a_slow_draft_are_advised_against():
    nothing, drafts = arm(*[1] * 128, seconds=1.0), arm(*[2] * 128, seconds=1.0)
    looked_up = replace(nothing, by_rule=True)
    assert len(list(advice(looked_up, None))) == 1
    asked = replace(looked_up, cell=Cell.from_request(make_request(target="nano", k=0)))
    short = replace(arm(*[1] * 3, seconds=1.0), by_rule=True)
    for silent in nothing, asked, short, replace(drafts, by_rule=True):
        assert list(advice(silent, None)) == []
    for low, high, lines in (0.25, 0.4, 1), (0.25, 1.1, 0), (None, None, 0):
        compared = Comparison(drafts, drafts, Estimate(0.32, low, high, 8), None, None)
        assert len(list(advice(drafts, compared))) == lines
    assert list(advice(drafts, compared._replace(speedup=None))) == []


@pytest.mark.parametrize(
    "rounds", [[4] * 8, [5, 5, 5, 5, 5, 5, 2], [9, 9, 9, 5], [17, 15], [2] * 16]
)
def test_as_many_tokens_always_give_a_number(rounds):
    """However the rounds of a drafter fall into segments."""
    ars, sps = arm(*[1] * 32, seconds=1.0), arm(*rounds, seconds=2.0)
    found = gain(ars, sps)
    assert found.mean == pytest.approx(32 / (2.0 * len(rounds)))
    assert found.low is None
    assert "no interval: needs 8 segments of 8 tokens or more in both texts" in told(ars, sps)


def test_a_text_that_is_too_short_gives_none():
    line = told(arm(*[1] * 32, seconds=1.0), arm(*[5] * 6, seconds=1.0))
    assert line == "speed-up: n/a (needs 32 tokens in both texts; ArS wrote 32, SpS 30)"


def test_long_texts_give_an_interval():
    ars = arm(*[1] * 128, seconds=1.0)
    uneven = [each for k in range(16) for each in ([2] * 4 if k % 3 else [4, 4])]
    found = gain(ars, arm(*uneven, seconds=1.0))
    assert found.n == 16
    assert found.low is not None
    assert "95% interval" in told(ars, arm(*uneven, seconds=1.0))


def test_the_times_beside_a_speedup_divide_to_it():
    """ArS takes longer after its first 64 tokens, to which SpS has no counterpart."""
    ars = arm(*[1] * 128, seconds=1.0)
    slow = [r._replace(seconds=3.0) for r in ars.record.rounds[64:]]
    ars.record.rounds[64:] = slow
    sps = arm(*[16] * 8, seconds=8.0)
    line = told(ars, sps)
    match = re.search(
        r"first (\d+) tokens of SpS at ([\d.]+) ms and (\d+) tokens of ArS at ([\d.]+)", line
    )
    assert match is not None
    assert [match[1], match[3]] == ["128", "64"]
    assert float(match[4]) / float(match[2]) == pytest.approx(gain(ars, sps).mean) == 2.0
    assert "over the first" not in told(arm(*[1] * 64, seconds=1.0), arm(*[8] * 8, seconds=4.0))


def test_a_comparison_tells_the_whole_answer_with_its_prefill():
    ars, sps = arm(*[1] * 64, seconds=0.01), arm(*[4] * 16, seconds=0.02)
    found = Comparison(ars, sps, gain(ars, sps), True, None)
    assert found.answer_speedup == pytest.approx((0.1 + 0.64) / (0.1 + 0.32))
    for word in "1.76x", "420 ms for 64 tokens", "after 120 ms", "740 ms", "after 110 ms":
        assert word in found.lines()[1]
    slow = arm(*[2] * 32, seconds=0.03)
    assert "0.70x, slower (SpS" in found._replace(sps=slow, speedup=gain(ars, slow)).answer
    short = arm(12, seconds=1.0)
    assert Comparison(short, short, None, True, None).answer_speedup is None


def busy(arm, processor):
    arm.record.rounds[:] = [r._replace(processor_seconds=processor) for r in arm.record.rounds]
    return arm


def test_few_stretches_under_load_decide_nothing():
    ars, sps = busy(arm(*[1] * 40, seconds=1.0), 0.3), busy(arm(*[4] * 10, seconds=8.0), 0.8)
    found = Comparison(ars, sps, gain(ars, sps), None, None, loaded=True)
    assert BUSY in found.lines()
    assert "300.00 ms with ArS, 200.00 ms with SpS, which takes 0.67 times as much" in found.speed
    quiet = found._replace(loaded=False)
    assert "0.50x, slower" in quiet.speed
    assert BUSY not in quiet.lines()
    unknown = found._replace(sps=arm(*[4] * 10, seconds=8.0))
    assert unknown.speed.endswith("a token: unknown")
    long, short = arm(*[1] * 128, seconds=1.0), arm(*[4, 5, 9, 8, 2, 7] * 5, seconds=9.0)
    assert (
        "x, slower (95% interval"
        in Comparison(long, short, gain(long, short), None, None, loaded=True).speed
    )


def rows(*flags):
    cells = [cell(0), cell(4)]
    records = [replace(r, flags=flags) for c in cells for r in run(c, 0.7, 3)]
    report = Report("run", [make_table(summaries(cells, records), Title("run"))])
    return Run(Path("run"), 6, report).rows()


def test_a_column_stays_when_all_timings_were_under_load():
    quiet, busy = rows(), rows("loaded")
    assert {tuple(row) for row in quiet} == {tuple(row) for row in busy}
    assert len({tuple(row) for row in quiet}) == 1
    assert quiet[1]["mean_token_time_ms"] is not None
    assert busy[1]["mean_token_time_ms"] == quiet[1]["mean_token_time_ms"]
    assert [busy[1][name] for name in ("timed", "loaded")] == [0, 3]
    assert busy[0]["alpha"] is None  # no draft: there, and empty

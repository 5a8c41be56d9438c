"""Repeats of a sample are one cluster, however many there are: they narrow no interval."""

from dataclasses import replace

import pytest

from spsbench.metrics.compare import compare, tally_run
from spsbench.metrics.summaries import summaries
from tests.simulation import cell, run

ARS, SPS = CELLS = cell(0), cell(4)
GAINS = ("speedup", "cost_ratio", "verify_ratio", "predicted_speedup")
RATES = ("alpha", "block_efficiency", "mean_token_time_ms", "ttft_ms", "draft_share")


def repeated(samples, repeats, alpha=0.7):
    """Records of both cells over `samples`, each of which came out the same in every repeat."""
    once = [r for c in CELLS for r in run(c, alpha, samples, spread=0.1)]
    return [replace(r, repeat=repeat) for repeat in range(repeats) for r in once]


def summary(samples, repeats):
    return summaries(CELLS, repeated(samples, repeats))[1]


def test_repeats_that_add_nothing_narrow_no_interval():
    once, often = summary(12, 1).figures, summary(12, 5).figures
    for name in GAINS + RATES:
        assert once[name].low < once[name].mean < once[name].high
        assert often[name][:3] == pytest.approx(once[name][:3], rel=1e-9)
        assert (once[name].n, often[name].n) == (12, 60)


def test_repeats_narrow_no_change_between_two_runs():
    def changes(repeats):
        runs = [repeated(12, repeats, alpha) for alpha in (0.7, 0.75)]
        base, now = (summaries(CELLS, each) for each in runs)
        numbers = {}
        both = tally_run(CELLS, runs[0], numbers), tally_run(CELLS, runs[1], numbers)
        found = compare(base, now, runs=both).differences
        return [d.change[:3] for d in found if d.pairs and d.change.low != d.change.high]

    once, often = changes(1), changes(5)
    assert len(once) > 3
    for change, same in zip(once, often, strict=True):
        assert same == pytest.approx(change, rel=1e-9, abs=1e-12)

"""Gains over a baseline: repeats of a sample are one cluster, however many there are."""

from dataclasses import replace

import pytest

from spsbench.figures.summaries import summaries
from spsbench.figures.summary import Summary
from tests.simulation import cell, run

ARS, SPS = cell(0), cell(4)
GAINS = ("speedup", "cost_ratio", "verify_ratio", "predicted_speedup")


def gained(samples: int, repeats: int) -> Summary:
    """The summary of SpS over `samples`, each of which came out the same in every repeat."""
    once = [r for c in (ARS, SPS) for r in run(c, 0.7, samples, spread=0.1)]
    repeated = [replace(r, repeat=repeat) for repeat in range(repeats) for r in once]
    return summaries([ARS, SPS], repeated)[1]


@pytest.mark.parametrize("name", GAINS)
def test_repeats_that_add_nothing_narrow_no_interval(name: str) -> None:
    once, often = (gained(12, repeats).figures[name] for repeats in (1, 5))
    assert once is not None
    assert often is not None
    assert once.low is not None
    assert once.low < once.mean < (once.high or 0)
    assert often[:3] == pytest.approx(once[:3], rel=1e-9)
    assert (once.n, often.n) == (12, 60)


@pytest.mark.parametrize("name", GAINS)
def test_repeats_of_few_samples_make_no_interval(name: str) -> None:
    estimate = gained(4, 5).figures[name]
    assert estimate is not None
    assert (estimate.low, estimate.high, estimate.n) == (None, None, 20)

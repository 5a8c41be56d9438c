"""Gains in batches against arithmetic by hand, over costs with round numbers."""

import functools
import itertools
import json

import numpy as np
import pytest

from spsbench.errors import DataError, UsageError
from spsbench.metrics.costs_file import dumps, loads
from spsbench.planning.forecast.batch_gains import forecast_batches
from spsbench.planning.forecast.forecasts import forecast_all
from spsbench.settings.cell import Cell
from spsbench.settings.commands import Planning
from spsbench.settings.grid import make_request
from tests.oracles.forecasts import (
    DRAFT,
    SIZES,
    SMALL,
    WEIGHTS,
    candidate,
    flat,
    forecast,
    in_batches,
    pass_seconds,
    texts,
)


@functools.cache
def predicted(sizes=SIZES, ks=(1, 2, 4, 8), alpha=0.8, length=60):
    costs = flat(batches=in_batches(), weights=WEIGHTS)
    traced = {SMALL: (DRAFT, texts(alpha, 4, length))}
    requests = {k: make_request(target="nano", draft="nano-draft", k=k) for k in ks}
    cells = {candidate(k): Cell.from_request(request) for k, request in requests.items()}
    return forecast_batches(sizes, forecast_all(map(candidate, ks), traced, costs), cells)


def test_a_gain_in_a_batch_is_tokens_over_measured_seconds():
    (alone, *others) = (row for row in predicted(ks=(4,), length=200).rows if row.cell.k)
    assert alone.cell.batch == 1
    assert alone.speedup == forecast(candidate(4), DRAFT, texts(0.8, 4, 200), flat()).speedup
    for row in others:
        size, tau = row.cell.batch, (1 - 0.8**5) / (1 - 0.8)
        plain = pass_seconds(size, 1) + 0.1 * size
        seconds = pass_seconds(size, 5) + 4.0 + 0.1 * size
        gained = min(tau, tau * plain / seconds)
        assert row.speedup.mean == pytest.approx(gained, rel=0.03), size
        machine = row.figures["machine_tokens_per_s"].mean
        assert machine == pytest.approx(gained * size / plain, rel=0.03)
        assert row.mean_token_time_ms.mean == pytest.approx(1e3 * size / machine)


def test_the_table_for_an_engine_covers_every_size_from_one():
    made = predicted(tuple(range(4, 33)))
    table = made.values["num_speculative_tokens_per_batch_size"]
    assert (table[0][0], table[-1][1]) == (1, 32)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(table))
    ks = [k for *_, k in table]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > 0
    assert ks[-1] == 0  # no draft where the machine is full
    assert json.loads(json.dumps(made.values))["method"] == f"{SMALL}, sps"
    assert f'"num_speculative_tokens_per_batch_size": {table}' in made.remarks[0]
    assert {row.cell.batch for row in made.rows} == {4, 8, 16, 32}  # of those that were measured


def test_caches_weigh_as_much_as_weights_from_fewer_tokens_in_a_batch():
    rows = predicted().values["rows"]
    assert {row["batch"]: row["balance_tokens"] for row in rows} == {n: 10_000 / n for n in SIZES}


def test_a_draft_that_is_never_right_gains_in_no_batch():
    made = predicted(alpha=0.01)
    assert all(row.speedup.mean <= 1 for row in made.rows)
    assert made.values["method"] == ""
    assert made.values["num_speculative_tokens_per_batch_size"] == [[1, 32, 0]]


def test_costs_of_batches_outlive_their_file():
    costs = flat(batches=in_batches(), weights=WEIGHTS)
    again = loads(dumps(costs), "here").batches
    assert again.sizes == SIZES
    for size in (1, 3, 32):
        ours, theirs = (each.round(SMALL, 2, 2, size, 150) for each in (costs.batches, again))
        assert np.allclose(ours, theirs)
    assert "batches" not in dumps(flat())


def test_sizes_between_two_measured_ones_are_interpolated():
    costs = in_batches()
    middle = (costs.target(8, 5, 100) + costs.target(16, 5, 100)) / 2
    assert costs.target(12, 5, 100) == pytest.approx(middle)


def test_what_was_not_measured_is_refused():
    traced = {SMALL: (DRAFT, texts(0.8, 2))}
    plain = forecast_all([candidate(2)], traced, flat())
    with pytest.raises(DataError):
        forecast_batches([1, 2], plain, {})
    with pytest.raises(DataError):
        predicted((64,))
    with pytest.raises(UsageError):
        Planning(batch=(1, 2), draft_cost=2.0)

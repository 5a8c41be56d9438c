"""Figures by batch against arithmetic by hand."""

from dataclasses import replace
from itertools import product

from spsbench.metrics.intervals import Estimate
from spsbench.reports.batch_figures import (
    batch_figure,
    envelope,
    panels,
    remarks,
    with_batch_figures,
)
from spsbench.reports.reporter import Title
from spsbench.reports.run_tables import table_of
from tests.reports.rows import summary
from tests.simulation import cell

GAINS = {(2, 1): 1.5, (4, 1): 1.8, (2, 4): 1.1, (4, 4): 0.9, (2, 8): 0.8, (4, 8): 0.5}


def alone(value):
    return Estimate(value, None, None, 9)


def row(k, batch, tau=2.0, **more):
    return summary(
        cell(k).but(batch=batch, **more),
        9,
        8,
        block_efficiency=Estimate(tau, tau - 0.1, tau + 0.1, 9),
        mean_token_time_ms=alone(2.0 * batch),
        speedup=alone(GAINS.get((k, batch), 1.0)),
        measured={"machine_tokens_per_s": alone(400.0), "empty_rows": alone(0.25)},
    )


ROWS = [row(k, batch) for k, batch in product((0, 2, 4), (1, 4, 8))]


def test_the_envelope_has_plain_sampling_in_it_and_the_gain_ends():
    best = envelope(ROWS)
    assert {size: gained.mean for size, (_, gained) in best.items()} == {1: 1.8, 4: 1.1, 8: 1.0}
    assert [best[size][0] and best[size][0].cell.k for size in best] == [4, 2, None]
    (line,) = remarks(ROWS)
    assert line.endswith("1.80x at 1, 1.10x at 4, 1.00x at 8. The gain ends after B* = 4 texts.")
    assert remarks(ROWS[:3]) == []  # nothing drafts
    assert remarks([row(2, 1), row(2, 4)])[0].endswith("The gain lasts to the largest batch, 4.")


def test_a_line_for_each_k_and_one_for_the_best():
    gains, pareto = panels(ROWS)
    by_name = {item.name: item for item in gains.items}
    assert list(by_name) == ["SpS K=2", "SpS K=4", "the best K, 0 among them", "no gain"]
    assert [(p.x, p.y) for p in by_name["SpS K=4"].points] == [(1, 1.8), (4, 0.9), (8, 0.5)]
    assert [(p.x, p.y) for p in pareto.items[0].points] == [(500, 400), (125, 400), (62.5, 400)]


def test_a_run_without_batches_stays_as_it_was():
    whole = table_of([row(k, 1) for k in (0, 2)], Title("run"))
    assert with_batch_figures(whole, whole.whole) is whole
    assert batch_figure(whole) is None
    assert batch_figure(replace(whole, further=())) is None

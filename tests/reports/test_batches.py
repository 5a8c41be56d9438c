"""Figures by batch against arithmetic by hand."""

from dataclasses import replace

from spsbench.reports.batch_figures import batch_panels, panels, remarks, with_batch_figures
from spsbench.reports.reporter import Title
from spsbench.reports.run_tables import make_table
from tests.reports.rows import IN_BATCHES, in_batch


def test_the_best_of_each_batch_has_plain_sampling_in_it():
    gains, pareto = panels(IN_BATCHES)
    points = {item.name: item.points for item in gains.items[:-1]}
    assert list(points) == ["SpS K=2", "SpS K=4", "the best K, 0 among them"]
    assert [(p.x, p.y) for p in points["SpS K=4"]] == [(1, 1.8), (4, 0.9), (8, 0.5)]
    assert [p.y for p in points["the best K, 0 among them"]] == [1.8, 1.1, 1.0]
    assert [(p.x, p.y) for p in pareto.items[0].points] == [(500, 400), (125, 400), (62.5, 400)]
    assert remarks(IN_BATCHES[:3]) == []  # nothing drafts
    assert remarks([in_batch(2, 1), in_batch(2, 4)])[0].endswith("to the largest batch, 4.")


def test_a_run_without_batches_stays_as_it_was():
    whole = make_table([in_batch(k, 1) for k in (0, 2)], Title("run"))
    assert with_batch_figures(whole, whole.whole) is whole
    assert not batch_panels(whole)
    assert not batch_panels(replace(whole, further=()))

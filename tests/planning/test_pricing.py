"""Costs that contradict each other are measured again."""

import pytest

from spsbench.metrics.costs_file import read_costs
from spsbench.planning.inputs import measured_costs
from tests.planning.forecast.made import arm, costs


def made(fixed):
    return costs(arms={"none": arm(0.0), "ngram": arm(0.01, fixed=fixed)})


@pytest.mark.parametrize(
    ("fixed", "kept", "told"), [([-6.0, 0.5], 0.5, 1), ([-6.0, -7.0], -7.0, 1), ([0.5], 0.5, 0)]
)
def test_contradictory_costs_are_measured_once_more(fixed, kept, told, said, tmp_path):
    tables = [made(each) for each in fixed]
    path = tmp_path / "costs.json"
    found = measured_costs(path, {}, [], lambda: tables.pop(0))
    assert not tables
    assert found.arms["ngram"].unexplained.seconds.max() == kept
    assert len(said) == told
    assert all("contradict" in line and "ngram with K = 1" in line for line in said)
    again = read_costs(path)
    assert again.arms["ngram"].unexplained.seconds.max() == kept

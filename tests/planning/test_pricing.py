"""Costs that contradict each other are measured again."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import read_costs
from spsbench.planning.plan_costs import Pricing
from spsbench.settings.commands import Planning
from spsbench.store.trace_records import Written
from spsbench.store.traces import Traces
from tests.planning.forecast.made import arm, costs

ONES = np.ones(3)


def made(fixed):
    return costs(arms={"none": arm(0.0), "ngram": arm(0.01, fixed=fixed)})


class Told(Pricing):
    """Measures what it is told, table after table."""

    def _pairs(self, traces: Traces) -> list[Any]:
        return [(None, None)]

    def _measured(self, pairs: Any, samples: Any, traces: Traces) -> Costs:
        return self.models.pop(0)


@pytest.mark.parametrize(
    ("fixed", "kept", "told"),
    [
        ([-6.0, 0.5], 0.5, 1),
        ([-6.0, -7.0], -7.0, 1),
        ([0.5], 0.5, 0),
    ],
)
def test_contradictory_costs_are_measured_once_more(fixed, kept, told, said, tmp_path):
    tables = [made(each) for each in fixed]
    pricing = Told(
        folder=tmp_path,
        planning=Planning(),
        plain=SimpleNamespace(),
        cells=[],
        models=tables,
        watch=lambda pace: None,
    )
    text = Written(key=("c", "s", 0), prompt_tokens=9, budget=9, finish="eos", q=ONES, entropy=ONES)
    traces = Traces(texts={text.key: text})
    found = pricing.costs([], traces)
    assert not tables
    assert found.arms["ngram"].unexplained.seconds.max() == kept
    assert len(said) == told
    assert all("contradict" in line and "ngram with K = 1" in line for line in said)
    again = read_costs(tmp_path / "costs.json")
    assert again.arms["ngram"].unexplained.seconds.max() == kept

"""What memory delivers, on clocks of our own."""

import pytest
import torch

from spsbench.planning import measure
from spsbench.planning.measure import bandwidth_of, device_bandwidth
from tests.planning.clocks import Clock
from tests.planning.clocks import clock as clock  # a fixture


def test_the_best_of_a_few_sums(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lasts = iter([0.5, *[4.0] * 5, 2.0, *[8.0] * 5])  # the first does not count
    monkeypatch.setattr(torch.Tensor, "sum", lambda numbers: clock.work(next(lasts)))
    assert device_bandwidth(torch.device("cpu"), size=4000) == 2000


def test_a_disturbed_look_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([(5.0, True), (7.0, False), (3.0, False)])
    monkeypatch.setattr(
        measure, "measured", lambda n: dict(zip(("bandwidth", "loaded"), next(seen), strict=True))
    )
    assert bandwidth_of(torch.device("cpu")) == 7
    assert bandwidth_of(torch.device("cpu")) == 3

"""A pass by part, on a clock that moves only where a module is said to take time."""

from random import Random

import pytest
from torch import nn

from spsbench.planning.measure_parts import PartMeter, kinds_of
from tests.folders import random_model
from tests.planning.test_measure import clock

__all__ = ["clock"]

TEXT = list(range(1, 100))


def test_seconds_go_to_the_kind_of_the_module_that_took_them(clock, monkeypatch):
    model = random_model()
    head, forward = model.get_output_embeddings(), nn.Linear.forward

    def timed(layer, x):
        clock.work(8.0 if layer is head else 1.0 + x.shape[-2])
        return forward(layer, x)

    monkeypatch.setattr(nn.Linear, "forward", timed)
    meter = PartMeter(model, model.config.vocab_size, TEXT, (1, 5), 20, Random(0))
    for _ in range(2):
        meter.turn()
    surfaces = meter.surfaces([1])
    layers = sum(isinstance(module, nn.Linear) for module in model.modules()) - 1
    assert [surfaces["head"].at(n, 20)[0] for n in (1, 5)] == [8.0, 8.0]
    assert surfaces["linear layers"].at(1, 20)[0] == pytest.approx(2.0 * layers)
    assert surfaces["linear layers"].at(5, 20)[0] == pytest.approx(6.0 * layers)
    for part in ("attention", "norms", "rest"):
        assert surfaces[part].at(1, 20)[0] == pytest.approx(0.0)


def test_each_module_has_one_kind_and_no_hook_is_left():
    model = random_model()
    kinds = dict(kinds_of(model))
    assert {"head", "attention", "norms", "linear layers inside attention"} <= {*kinds.values()}
    meter = PartMeter(model, model.config.vocab_size, TEXT, (1,), 20, Random(0))
    meter.turn()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())

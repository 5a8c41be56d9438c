"""Activations that are computed again: the same gradients, and every layer run twice."""

import pytest
import torch

from spsbench.extensions.training.batches import Batches
from spsbench.extensions.training.gradients import Gradients
from spsbench.extensions.training.teacher import Teacher
from spsbench.parallel.process_group import SingleProcess
from tests.extensions.training import small
from tests.extensions.training.test_course import RULES


@pytest.mark.parametrize("kind", ["draft", "eagle3", pytest.param("eagle", marks=pytest.mark.slow)])
def test_gradients_are_the_same(kind):
    model = small.target()
    texts = small.texts(model)
    found, runs = [], []
    for recompute in (False, True):
        made = small.student(kind, model)
        made.recompute = recompute
        parts = made.network.model.layers if kind == "draft" else made.network.stack
        count = []
        attention = parts[0].self_attn  # asked before it runs: a second run may end inside it
        hook = attention.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        batches = Batches(texts, 80, 0, torch.device("cpu"))
        Gradients(made, Teacher(model, small.VOCAB), batches, RULES, SingleProcess()).add(0, 8)
        hook.remove()
        runs.append(len(count))
        found.append({name: weight.grad for name, weight in made.network.named_parameters()})
    assert runs[1] == 2 * runs[0] > 0
    for name, weight in found[0].items():
        assert torch.equal(weight, found[1][name]), name


def test_layers_are_as_they_were_afterwards():
    model = small.target()
    made = small.student("draft", model)
    made.recompute = True
    batch = small.batch(small.texts(model, count=2))
    list(made.guesses(batch, Teacher(model, small.VOCAB).teach(batch), 1))
    assert all("forward" not in vars(layer) for layer in made.network.model.layers)


def test_those_with_nothing_deep_cannot():
    model = small.target()
    assert [small.student(kind, model).recomputes for kind in ("medusa", "mlp", "eagle")] == [
        False,
        False,
        True,
    ]

"""Views: a model less some layers is the model from which they were deleted."""

import copy

import pytest
import torch
from torch import nn

from spsbench.engines.eager import EagerLM, UnsupportedModelError
from spsbench.engines.session import layer_skip
from spsbench.engines.session.layer_skip import view
from spsbench.engines.session.session import FastLM
from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Variant
from spsbench.methods.drafters.self_speculation import variant_of
from tests.oracles.batches import VARIANTS, X, deep
from tests.oracles.models import ARCHITECTURES, laws
from tests.variants import first

pytestmark = pytest.mark.numeric

SESSIONS = {"eager": EagerLM, "fast": FastLM}


def without(model, variant):
    """A copy whose layers are deleted."""
    made = copy.deepcopy(model)
    inner = made.transformer if hasattr(made, "transformer") else made.model
    name = "h" if hasattr(inner, "h") else "layers"
    layers = getattr(inner, name)
    setattr(inner, name, nn.ModuleList(x for i, x in enumerate(layers) if i not in variant.layers))
    made.config.num_hidden_layers = len(getattr(inner, name))
    return made


@pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))
@pytest.mark.parametrize("session", SESSIONS)
def test_a_view_is_the_model_without_those_layers(architecture, session):
    model = deep(architecture)
    whole = laws(model, X)
    for variant in VARIANTS:
        expected = laws(without(model, variant), X)
        lm = SESSIONS[session](view(model, variant))
        lm.append(torch.tensor(X[:3]), keep=0)
        lm.append(torch.tensor([9, 9]), keep=2)
        lm.commit(3)  # rejected
        got = lm.append(torch.tensor(X[3:]), keep=4).logits
        torch.testing.assert_close(got, expected[3:], rtol=0, atol=1e-10)
        assert view(model, variant) is view(model, variant)
    torch.testing.assert_close(laws(model, X), whole, rtol=0, atol=0)  # and it is as it was


def test_it_shares_the_weights_and_leaves_the_model_alone():
    model = deep("llama")
    made = view(model, VARIANTS[0])
    assert {id(weight) for weight in made.parameters()} < {id(w) for w in model.parameters()}
    assert (made.config.num_hidden_layers, model.config.num_hidden_layers) == (2, 4)
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1, 2, 3]
    assert [layer.self_attn.layer_idx for layer in made.model.layers] == [0, 1]


@pytest.mark.parametrize(
    ("variant", "line"),
    [
        (Variant(frozenset({4, 9})), "layers 4, 9 left out of a model that has 4: expected 0 to 3"),
        (Variant(frozenset({0, 1, 2, 3})), "all of 4 layers left out"),
    ],
)
def test_what_cannot_be_left_out_is_refused(variant, line):
    with pytest.raises(UsageError):
        view(deep("llama"), variant)


def test_a_model_without_a_list_of_layers_is_refused():
    with pytest.raises(UnsupportedModelError):
        layer_skip.layers_of(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("given", "found"), [(3, {3}), ("2+4", {2, 4}), ("8-11", {8, 9, 10, 11}), ("1+3-4", {1, 3, 4})]
)
def test_layers_are_read(given, found):
    assert variant_of(8, given).layers == found


def test_half_leaves_out_every_other_layer_but_the_first_and_the_last_two():
    assert variant_of(8, "half").layers == {2, 4}
    assert variant_of(2, "half").layers == {1}

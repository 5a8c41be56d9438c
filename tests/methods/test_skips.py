"""The search for layers to spare: its alpha is the laws' overlap, an idle layer is found."""

import pytest
import torch

from spsbench.engines.eager import Eager
from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Variant
from spsbench.loop.sampling import Warp
from spsbench.methods.layer_search import (
    Bench,
    Skip,
    Text,
    best,
    joined,
    search,
    share_of_weights,
    worth,
)
from spsbench.spec import Spec
from tests.decoding import output, rounds_of
from tests.tiny_models import laws, tiny

IDLE = 2


@pytest.fixture(scope="module")
def target():
    """Four layers, one of which adds almost nothing."""
    made = tiny("llama", num_hidden_layers=4)
    for weight in (made.model.layers[IDLE].self_attn.o_proj, made.model.layers[IDLE].mlp.down_proj):
        weight.weight.mul_(1e-3)
    return made


@pytest.fixture(scope="module")
def bench(target):
    lm, texts = Eager().session(target), []
    for seed in range(2):
        made = output(rounds_of(lm, tokens=12, warp=Warp(), seed=seed))
        texts.append(Text([1, 2, 3, *made], 3))
    return Bench(target, Eager(), texts, Warp(), 12)


def test_alpha_is_the_mean_overlap_of_the_laws(target, bench):
    variant = Variant(frozenset({1}))
    from spsbench.engines.session.layer_skip import view

    shared = []
    for text in bench._texts:
        q, p = (
            laws(model, list(text.tokens[:-1]))[text.prompt - 1 :].softmax(-1)
            for model in (target, view(target, variant))
        )
        shared += torch.minimum(q, p).sum(-1).tolist()
    assert len(shared) == 24
    assert bench.alpha(variant) == pytest.approx(sum(shared) / len(shared), abs=1e-6)
    assert bench.alpha(Variant(frozenset({IDLE}))) > 0.95


def test_the_search_leaves_out_the_idle_layer_first(bench):
    found = list(search(bench, candidates=2))
    assert [len(skip.variant.layers) for skip in found] == [1, 2, 3]
    assert found[0].variant.layers == {IDLE}
    assert all(IDLE in skip.variant.layers for skip in found)
    assert found[0].cost > found[1].cost > found[2].cost
    assert best(found).gain == max(skip.gain for skip in found)


def test_parts_of_layers_are_left_out_as_well(bench):
    found = list(search(bench, sublayers=True, candidates=1))
    assert found[1].variant == Variant(frozenset({IDLE}))  # both halves: the layer
    assert str(found[0]).startswith("self:skip=none,")


@pytest.mark.parametrize(
    "variant",
    [
        Variant(frozenset({2, 3}), frozenset({0})),
        Variant(mlp=frozenset({0, 1})),
        Variant(frozenset({1})),
    ],
)
def test_a_found_set_is_a_spec(variant):
    from spsbench.methods.drafters.self_speculation import variant_of

    spec = Spec.parse(str(Skip(variant, 0.5, 0.5, 1.0, 2)))
    asked = {"skip": "half", "attention": "", "mlp": "", **dict(spec.args)}
    assert variant_of(4, **asked) == variant
    assert Spec.parse("self:1+2,mlp=3") == Spec("self", (("skip", "1+2"), ("mlp", 3)))


def test_the_gain_is_that_of_the_best_k():
    skip = worth(Variant(frozenset({1})), 0.8, 0.1)
    gains = {k: (1 - 0.8 ** (k + 1)) / 0.2 / (0.1 * k + 1) for k in range(1, 9)}
    assert skip.k == max(gains, key=gains.__getitem__)
    assert skip.gain == pytest.approx(max(gains.values()))


def test_halves_of_one_layer_join_to_the_whole():
    halves = Variant(attention=frozenset({1, 2})), Variant(mlp=frozenset({1}))
    assert joined(*halves) == Variant(frozenset({1}), frozenset({2}))


def test_the_cost_is_the_share_of_weights(target):
    share = share_of_weights(target)
    one, three = share(Variant(frozenset({0}))), share(Variant(frozenset({0, 1, 2})))
    assert 1 - one == pytest.approx((1 - three) / 3)


def test_texts_without_an_output_are_refused(target):
    with pytest.raises(UsageError, match="texts without an output"):
        Bench(target, Eager(), [Text([1, 2], 2)], Warp(), 12)
    with pytest.raises(UsageError, match="layers to spare"):
        best([])

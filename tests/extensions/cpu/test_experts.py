"""LayerList of experts: read one by one, counted, and the numbers of transformers' own code."""

import copy

import pytest
import torch

from spsbench.engines.eager import Eager
from spsbench.engines.experts import expert_modules
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.packing.experts import PackedExperts
from tests.extensions.cpu.architectures import MODELS, random_model
from tests.extensions.cpu.laid_out import laid_out

pytestmark = pytest.mark.numeric

WITHIN = {torch.float32: 1e-5, torch.bfloat16: 0.03}  # of the greatest logit
MOE = [
    "gpt_oss",  # transposed, with biases and a gate of its own
    "mixtral",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("olmoe", "qwen2_moe", "qwen3_moe")),
]
architectures = pytest.mark.parametrize("name", MOE)
IDS = torch.arange(40) * 7 % 96


def prepared(model):
    """With all that can be in panels, experts too."""
    laid_out(model)
    assert any(isinstance(module, PackedExperts) for module in model.modules())
    return model


def chosen(model, text, rows):
    """The experts that each layer takes for the last `rows` tokens, by hooks on stock layers."""
    found = []
    handles = [
        module.register_forward_pre_hook(
            lambda module, given: found.append(set(given[1][-rows:].flatten().tolist()))
        )
        for _, _, module in expert_modules(model)
    ]
    with torch.inference_mode():
        model(input_ids=text[None], use_cache=False)
    for handle in handles:
        handle.remove()
    return found


@architectures
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_packed_experts_are_those_of_transformers(name, dtype):
    stock = random_model(name, 0).to(dtype)
    exact = copy.deepcopy(stock).float()(input_ids=IDS[None]).logits
    model = prepared(copy.deepcopy(stock))
    error = (model(input_ids=IDS[None]).logits.float() - exact).abs().amax(-1)[0]
    # In half precision a router may choose otherwise for a token here and there.
    assert error.median() < WITHIN[dtype] * exact.abs().max()
    again = copy.deepcopy(model)
    assert not any(isinstance(module, PackedExperts) for module in again.modules())
    for weight, own in zip(again.parameters(), stock.parameters(), strict=True):
        assert torch.equal(weight, own)


@architectures
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_row_is_the_same_whoever_else_is_routed(name, dtype):
    model = prepared(random_model(name, 0).to(dtype))
    layer = next(module for module in model.modules() if isinstance(module, PackedExperts))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 64, generator=generator).to(dtype)
    ids = torch.tensor([[row % 4, row * 3 % 4] for row in range(12)])
    weights = torch.rand(12, 2, generator=generator).to(dtype)
    every = layer(x, ids, weights)
    for row in range(12):
        assert torch.equal(layer(x[row, None], ids[row, None], weights[row, None])[0], every[row])


def test_only_the_experts_of_a_pass_are_read():
    """What is wrong with the others does not show."""
    stock = random_model("mixtral", 0)
    model, text = prepared(copy.deepcopy(stock)), IDS[:3]
    before = model(input_ids=text[None]).logits
    layers = [m for m in model.modules() if isinstance(m, PackedExperts)]
    spoilt = 0
    with torch.inference_mode():
        for layer, used in zip(layers, chosen(stock, text, 3), strict=True):
            for expert in set(range(4)) - used:
                layer.gate_up_proj[expert] = layer.down_proj[expert] = float("nan")
                spoilt += 1
    assert spoilt
    assert torch.equal(model(input_ids=text[None]).logits, before)


def test_experts_that_are_moved_are_followed_and_a_cast_is_refused():
    model = prepared(random_model("mixtral", 0))
    before = model(input_ids=IDS[None]).logits
    for weight in model.parameters():
        former, weight.data = weight.data, weight.data.clone()
        former.zero_()
    assert torch.equal(model(input_ids=IDS[None]).logits, before)
    layer = next(m for m in model.modules() if isinstance(m, PackedExperts))
    with pytest.raises(RuntimeError):
        layer.bfloat16()(torch.ones(1, 64).bfloat16(), IDS[None, :2] % 4, torch.ones(1, 2))


def counts(lm):
    """Of single tokens and of blocks, often enough to be replayed."""
    lm.append(IDS[:20], keep=0)
    found = []
    for size in (1, 5) * 4:
        lm.commit(20)
        found.append(lm.append(IDS[20 : 20 + size], keep=size).experts)
    return found


@architectures
@pytest.mark.parametrize("engine", [Eager(), Fast()], ids=["eager", "fast"])
def test_distinct_experts_of_a_pass_are_counted(name, engine):
    stock = random_model(name, 0)
    model = copy.deepcopy(stock)
    if isinstance(engine, Fast):
        prepared(model)
    else:
        engine.prepare(model)
    wanted = []
    for size in (1, 5) * 4:
        layers = chosen(stock, IDS[: 20 + size], size)
        wanted.append(sum(map(len, layers)) / len(layers))
    assert counts(engine.session(model)) == wanted
    assert wanted[0] == MODELS[name].get("num_experts_per_tok", 2)
    assert len(set(wanted)) == 2


def test_experts_that_come_out_wrong_stay_stock(monkeypatch):
    own = PackedExperts.forward
    monkeypatch.setattr(PackedExperts, "forward", lambda *given: 2 * own(*given))
    model = random_model("mixtral", 0)
    choice = laid_out(model)
    assert not any(isinstance(module, PackedExperts) for module in model.modules())
    assert choice.packed_linears == choice.linears  # the rest is packed
    assert counts(Fast().session(model)) == counts(Eager().session(random_model_counted()))


def random_model_counted():
    model = random_model("mixtral", 0)
    Eager().prepare(model)
    return model

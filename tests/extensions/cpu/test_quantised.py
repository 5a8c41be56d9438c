"""Quantised weights: one law whoever multiplies, that of the numbers which the codes stand for."""

import copy

import pytest
import torch
from torch import nn

from spsbench.audit.statistical.forward import Scorer
from spsbench.engines.eager import Eager
from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import (
    WideLinear,
    dequantise,
    format_of,
    quantise,
    quantised_layers,
)
from spsbench.engines.session.engine_config import engine_config_of
from spsbench.errors import UsageError
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.kernels import steps
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.models.loader import load_model
from spsbench.models.source import quantise_linears
from spsbench.settings.grid import make_request
from spsbench.settings.models import BUNDLED, ModelSpec
from tests.extensions.cpu.laid_out import without_compiler
from tests.oracles.models import tiny

pytestmark = pytest.mark.numeric

formats = pytest.mark.parametrize("name", FORMATS)
compiled = pytest.mark.skipif(missing(torch.float32) is not None, reason="needs a C compiler")
X = torch.tensor([1, 2, 3, 4, 5, 6, 7])


def made(name, dtype=torch.float32, architecture="llama"):
    model = tiny(architecture, vocab=70, dtype=dtype)
    assert quantise(model, name)
    return model


def logits(lm):
    """Of a text in two passes, a rejection between them."""
    first = lm.append(X[:4], keep=4).logits
    lm.commit(3)
    return torch.cat([first[:3], lm.append(X[3:], keep=4).logits]).double()


@compiled
@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_makes_torch_s_codes(name, dtype, tmp_path):
    """Bit for bit: ties, scales below the normal halves and beyond the largest, columns too."""
    generator, weights = torch.Generator().manual_seed(3), []
    for size in 1.0, 1e-3, 1e-6, 1e-8, 3e6, 0.0:
        for width in 7, 32, 100, 576:
            weights.append((torch.randn(70, width, generator=generator) * size).to(dtype))
            weights.append((torch.randn(width, 70, generator=generator) * size).to(dtype).t())
    ours = [Codes.of(weight, FORMATS[name]) for weight in weights]
    with without_compiler(tmp_path):
        theirs = [Codes.of(weight, FORMATS[name]) for weight in weights]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.numbers, other.numbers)
        assert torch.equal(one.scales.view(torch.int16), other.scales.view(torch.int16))


@formats
@pytest.mark.parametrize("width", [32, 100])
def test_numbers_are_the_nearest(name, width):
    """By a loop over single numbers, in Python's own arithmetic."""
    kind = FORMATS[name]
    weight = torch.randn(5, width, generator=torch.Generator().manual_seed(1))
    weight[1] = 0
    codes = Codes.of(weight, kind)
    group, (least, most) = kind.group or width, (-127, 127) if kind.bits == 8 else (-8, 7)
    for o in range(5):
        for start in range(0, width, group):
            own = [float(w) for w in weight[o, start : start + group]]
            widest = max(own, key=abs)
            exact = abs(widest) / 127 if kind.bits == 8 else widest / -8
            scale = float(torch.tensor(exact).half())
            assert float(codes.scales[o, start // group]) == scale
            for i, value in enumerate(own):
                number = int(codes.numbers[o, start + i])
                best = min(range(least, most + 1), key=lambda n: abs(n * scale - value))
                assert abs(number * scale - value) <= abs(best * scale - value) + 1e-9
    dense = codes.dense(torch.float64)
    assert torch.equal(codes.dense(torch.float32).double(), dense)  # held exactly


@formats
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_its_law_is_that_of_the_dense_numbers(name, architecture):
    model = made(name, torch.float64, architecture)
    plain = copy.deepcopy(model)
    for parent, at, layer in quantised_layers(plain):
        own = nn.Linear(layer.in_features, layer.out_features, dtype=torch.float64)
        own.weight = nn.Parameter(layer.codes.dense(torch.float64), requires_grad=False)
        own.bias = layer.bias
        setattr(parent, at, own)
    text = X[None]
    with torch.inference_mode():
        expected = plain(input_ids=text).logits
        assert torch.allclose(model(input_ids=text).logits, expected, rtol=0, atol=1e-12)
        assert not torch.allclose(tiny(architecture, vocab=70)(input_ids=text).logits, expected)


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_engines_run_the_same_numbers(name, dtype):
    model = made(name, dtype)
    slow, quick = copy.deepcopy(model), copy.deepcopy(model)
    Eager().prepare(slow)
    why = Fast().prepare(quick, threads=1)["reason"]
    assert ("not torch.float64" in why) == (dtype == torch.float64)
    assert not quantised_layers(slow)
    assert not quantised_layers(quick)
    assert any(isinstance(m, WideLinear) for m in slow.modules()) == (dtype == torch.bfloat16)
    one, other = logits(Eager().session(slow)), logits(Fast().session(quick))
    within = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    assert float((one - other).abs().max()) <= within * float(one.abs().max())


@compiled
def test_a_wrong_kernel_is_found_out(monkeypatch):
    """Its codes are then run as plain weights."""
    right = steps.OPERATORS["quantised"]

    def wrong(*given):
        result, step = right(*given)
        return result, step._replace(n=(*step.n[:-1], step.n[-1] - 1))

    model, slow = made("int4"), made("int4")
    monkeypatch.setitem(steps.OPERATORS, "quantised", wrong)
    monkeypatch.setattr(steps, "_plans", {})
    Fast().prepare(model, threads=1)
    choice = engine_config_of(model)
    assert "differ" in choice.reason
    assert choice.packed_linears == 0
    Eager().prepare(slow)
    assert torch.allclose(logits(Fast().session(model)), logits(Eager().session(slow)), atol=1e-4)


def bundled(**more):
    spec = ModelSpec("", **({"dtype": "float32"} | more))
    return load_model(BUNDLED["nano-draft"], spec)


def test_the_audit_scores_the_same_numbers():
    """The scorer reads the weights again and rounds them itself; without that it is another law."""
    model = quantise_linears(bundled(), "int4", BUNDLED["nano-draft"])
    assert format_of(model) == "int4"
    prompt, text = [5, 6, 7], [8, 9, 10, 11]
    scorer = Scorer(model, 4096)
    found = scorer.logits(prompt, text)
    dequantise(model)
    own = Eager().session(model).append(torch.tensor([*prompt, *text[:-1]]), 4).logits
    assert torch.allclose(torch.from_numpy(found), own, rtol=0, atol=1e-3)
    full = Scorer(bundled(), 4096).logits(prompt, text)
    assert not torch.allclose(torch.from_numpy(full), own, rtol=0, atol=0.1)


def test_a_target_s_own_copy_drafts():
    models = make_request(target="nano", draft="self:int4").models
    assert [str(model) for model in models] == ["nano", "nano int4"]
    assert make_request(target="nano", draft="self:int4", drafter="tree").models == models
    for part in ("int8", "int4", "int4-64"):
        own = make_request(target="nano", draft=f"self:{part}")
        assert make_request(target="nano", drafter=f"self:{part}") == own
    drawn = make_request(target="nano", draft="self:int8", weights="random").draft
    assert drawn.weights == "random-int8"
    for given in (
        {"draft": "self:int3"},
        {"draft": "self:int4", "draft_weights": "int8"},
        {"draft": "nano-draft", "drafter": "self:int4"},
    ):
        with pytest.raises(UsageError):
            make_request(target="nano", **given)

"""The audit's own warp and scorer: apart from the shipping ones, and equal to them."""

import numpy as np
import pytest
import torch

from spsbench.audit.statistical.forward import Scorer, precise
from spsbench.audit.statistical.positions import distributions_of
from spsbench.loop.sampling import Warp
from spsbench.settings.cell import WarpSettings
from tests.oracles.models import laws, tiny

WARPS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"top_p": 0.8},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 2.0, "top_k": 1, "top_p": 0.5},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
]


@pytest.mark.parametrize("settings", WARPS, ids=str)
def test_it_is_the_shipping_warp(settings):
    logits = torch.randn(40, 60, dtype=torch.float64, generator=torch.manual_seed(0)) * 3
    logits[:10] = logits[:10].round()  # ties
    shipped = Warp(**settings)(logits)
    own = distributions_of(logits.numpy(), WarpSettings(**settings))
    assert own.probs == pytest.approx(shipped.numpy(), abs=1e-12)
    inside = own.probs > 0
    for token in range(60):
        beyond = own.outside(np.full(40, token))
        assert ((beyond == 0) == inside[:, token]).all()


def test_how_far_a_token_is_outside():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    nucleus = distributions_of(logits, WarpSettings(top_p=0.8 + 1e-9))
    assert nucleus.outside(np.array([3]))[0] == pytest.approx(0.15, abs=1e-6)
    assert distributions_of(logits, WarpSettings(top_p=0.8 - 1e-6)).outside(np.array([2]))[
        0
    ] == pytest.approx(1e-6)
    cut = distributions_of(logits, WarpSettings(top_k=2)).outside(np.array([3]))[0]
    assert cut == pytest.approx(np.log(0.3 / 0.05))
    rows = distributions_of(logits.repeat(4, 0), WarpSettings(min_p=0.2))
    unlikely = rows.outside(np.arange(4))
    assert unlikely == pytest.approx([0, 0, 0, np.log(0.2 * 0.5 / 0.05)])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_one_pass_scores_each_token_given_all_before(architecture):
    model = tiny(architecture)
    prompt, tokens = [1, 5, 2], [3, 3, 7, 0, 11]
    rows = Scorer(model, 12).logits(prompt, tokens)
    assert rows == pytest.approx(laws(model, prompt + tokens)[2:-1].cpu().numpy(), abs=1e-12)
    assert Scorer(model, 10).logits(prompt, tokens).shape == (5, 10)
    assert len(Scorer(model, 12).logits(prompt, [])) == 0
    short = tiny(architecture, context=5)
    assert len(Scorer(short, 12).logits(prompt, tokens)) == 3


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_a_narrow_model_is_widened_while_it_runs_and_left_as_it_was(architecture):
    narrow = tiny(architecture, dtype=torch.bfloat16)
    before = {name: (p.dtype, p.data_ptr()) for name, p in narrow.named_parameters()}
    prompt, tokens = [1, 5, 2], [3, 3, 7, 0, 11]
    rows = Scorer(narrow, 12).logits(prompt, tokens)
    after = {name: (p.dtype, p.data_ptr()) for name, p in narrow.named_parameters()}
    assert after == before
    wide = tiny(architecture, dtype=torch.bfloat16).float()
    assert rows == pytest.approx(Scorer(wide, 12).logits(prompt, tokens), abs=1e-5)
    rough = laws(narrow, prompt + tokens)[2:-1].float().cpu().numpy()
    assert np.abs(rough - rows).max() > 1e-3


def test_it_is_left_as_it_was_even_when_it_fails():
    narrow = tiny("llama", dtype=torch.bfloat16)
    with pytest.raises(IndexError), precise(narrow):
        narrow(input_ids=torch.tensor([[99]]))
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}

"""The audit's own warp and scorer: apart from the shipping ones, and equal to them."""

import numpy as np
import pytest
import torch

from spsbench.audit.statistical.forward import Scorer, precise
from spsbench.audit.statistical.warping import warp
from spsbench.loop.sampling import Warp
from tests.tiny_models import laws, tiny

WARPS = [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.8), (0.8, 20, 0.9), (2.0, 1, 0.5)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), WARPS)
def test_it_is_the_shipping_warp(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(40, 60, dtype=torch.float64, generator=torch.manual_seed(0)) * 3
    logits[:10] = logits[:10].round()  # ties
    shipped = Warp(temperature, top_k, top_p)(logits)
    own = warp(logits.numpy(), temperature, top_k, top_p)
    assert own.law == pytest.approx(shipped.numpy(), abs=1e-12)
    inside = own.law > 0
    for token in range(60):
        beyond = own.outside(np.full(40, token))
        assert ((beyond == 0) == inside[:, token]).all()


def test_how_far_a_token_is_outside() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    nucleus = warp(logits, 1.0, 0, 0.8 + 1e-9)
    assert nucleus.outside(np.array([3]))[0] == pytest.approx(0.15, abs=1e-6)
    assert warp(logits, 1.0, 0, 0.8 - 1e-6).outside(np.array([2]))[0] == pytest.approx(1e-6)
    cut = warp(logits, 1.0, 2).outside(np.array([3]))[0]
    assert cut == pytest.approx(np.log(0.3 / 0.05))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_one_pass_scores_each_token_given_all_before(architecture: str) -> None:
    model = tiny(architecture)
    prompt, tokens = [1, 5, 2], [3, 3, 7, 0, 11]
    rows = Scorer(model, 12).logits(prompt, tokens)
    assert rows == pytest.approx(laws(model, prompt + tokens)[2:-1].numpy(), abs=1e-12)
    assert Scorer(model, 10).logits(prompt, tokens).shape == (5, 10)
    assert len(Scorer(model, 12).logits(prompt, [])) == 0
    short = tiny(architecture, context=5)
    assert len(Scorer(short, 12).logits(prompt, tokens)) == 3


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_a_narrow_model_is_widened_while_it_runs_and_left_as_it_was(architecture: str) -> None:
    narrow = tiny(architecture, dtype=torch.bfloat16)
    before = {name: (p.dtype, p.data_ptr()) for name, p in narrow.named_parameters()}
    prompt, tokens = [1, 5, 2], [3, 3, 7, 0, 11]
    rows = Scorer(narrow, 12).logits(prompt, tokens)
    after = {name: (p.dtype, p.data_ptr()) for name, p in narrow.named_parameters()}
    assert after == before
    wide = tiny(architecture, dtype=torch.bfloat16).float()
    assert rows == pytest.approx(Scorer(wide, 12).logits(prompt, tokens), abs=1e-5)
    rough = laws(narrow, prompt + tokens)[2:-1].float().numpy()
    assert np.abs(rough - rows).max() > 1e-3


def test_it_is_left_as_it_was_even_when_it_fails() -> None:
    narrow = tiny("llama", dtype=torch.bfloat16)
    with pytest.raises(IndexError), precise(narrow):
        narrow(input_ids=torch.tensor([[99]]))
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}

"""A rotation in one operator has the bits of transformers' own; another way to rotate stays."""

import pytest
import torch
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from spsbench.engines.session.session import FastLM
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import available
from spsbench.extensions.cpu.replay import fused_modules
from spsbench.extensions.cpu.replay.fused_modules import one_rotation, rotate, usual
from tests.extensions.cpu.programs import ready
from tests.oracles.models import laws, tiny

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(not available(), reason="needs a C compiler")]
LLAMA = modeling_llama.apply_rotary_pos_emb


def given(tokens, width=16, dtype=torch.bfloat16):
    """Queries and keys as projections leave them, cosines and sines."""
    generator = torch.Generator().manual_seed(tokens)
    q, k = (
        torch.randn(1, tokens, n, width, generator=generator).to(dtype).transpose(1, 2)
        for n in (6, 2)
    )
    angles = 9 * torch.randn(1, tokens, width, generator=generator)
    return [q, k, angles.cos().to(dtype), angles.sin().to(dtype)]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("stock", [LLAMA, modeling_qwen3.apply_rotary_pos_emb])
def test_bits_are_those_of_transformers(stock, dtype):
    assert usual(stock)
    for tokens in 1, 5, 40:
        for width in 2, 16, 128:
            asked = given(tokens, width, dtype)
            for found, exact in zip(rotate(stock, *asked), stock(*asked), strict=True):
                assert torch.equal(found, exact)
                assert found.stride()[1:] == exact.stride()[1:] or tokens == 1


def test_what_it_cannot_turn_goes_to_the_stock_one():
    told = []

    def stock(q, k, *rest, **named):
        told.append("stock")
        return q, k

    q, k, cos, sin = given(3)
    rotate(stock, q, k, cos, sin)
    assert not told
    for other in (
        given(3, dtype=torch.float64),
        [q[..., :8], k[..., :8], cos, sin],
        [q.expand(2, -1, -1, -1), k, cos, sin],
        [q, k, cos[0], sin[0]],
        [q, k, cos, sin, 1],
    ):
        rotate(stock, *other)
    assert len(told) == 5


def test_another_way_to_rotate_is_left_alone():
    """Cohere's turns neighbours, and its function is another."""
    assert not usual(modeling_cohere.apply_rotary_pos_emb)
    assert not usual(lambda q, k: (q, k))
    layer = tiny("llama", dtype=torch.bfloat16).model.layers[0]
    with one_rotation(layer):
        assert modeling_llama.apply_rotary_pos_emb is not LLAMA
        assert modeling_qwen3.apply_rotary_pos_emb is not modeling_llama.apply_rotary_pos_emb
    assert modeling_llama.apply_rotary_pos_emb is LLAMA


def session():
    model, tape = ready("llama", torch.bfloat16)
    return model, tape, FastLM(model)


def fed(lm, count):
    lm.append(torch.tensor([1, 2, 3]), keep=0)
    steps = [lm.append(torch.tensor([token]), keep=1).logits for token in range(4, 4 + count)]
    return torch.cat(steps)


def test_a_rotation_that_errs_is_found_out(monkeypatch):
    def errs(stock, q, k, cos, sin):
        return LLAMA(q, k, sin, cos)

    monkeypatch.setattr(fused_modules, "rotate", errs)
    monkeypatch.setattr(fused_modules, "usual", lambda stock: True)
    model, tape, lm = session()
    found = fed(lm, 6)
    assert tape.refused
    assert (found - laws(model, list(range(1, 10)))[3:]).abs().max() <= 0.05 * found.abs().max()

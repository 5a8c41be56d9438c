"""The training loop: exact resume, growth, the schedule; the twin of transformers' Llama."""

import pytest
import torch

from spsbench.training.nano.data import Stream
from spsbench.training.nano.export import rounded, save, to_transformers
from spsbench.training.nano.llama import Llama, LlamaShape
from spsbench.training.nano.muon import orthogonalise
from spsbench.training.nano.pretrain import Plan, Stage, start, train
from spsbench.training.nano.tokenizer import train as train_tokenizer

SHAPE = LlamaShape(layers=4, width=16, hidden=24, heads=2, vocab=40, context=64)
PLAN = Plan(
    stages=(Stage(1, 8, 64, 3), Stage(2, 8, 64, 3), Stage(4, 16, 64, 3)),
    warmup=128,
    cooldown=256,
    micro_tokens=32,
    checkpoint_every=2,
)
STREAM = Stream(torch.randint(40, (2000,), generator=torch.Generator().manual_seed(1)), seed=0)


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("cut", [64, 192, 320, 448])
def test_resume_gives_the_same_weights(tmp_path, cut):
    whole = train(SHAPE, PLAN, STREAM, tmp_path / "whole.pt")
    train(SHAPE, PLAN, STREAM, tmp_path / "cut.pt", until=cut)
    resumed = train(SHAPE, PLAN, STREAM, tmp_path / "cut.pt")
    assert resumed.tokens == whole.tokens == PLAN.tokens == 576
    assert resumed.model.shape == SHAPE
    assert same(whole.model, resumed.model)


def test_loss_falls(tmp_path):
    ids = torch.arange(2000) % 40
    losses = []
    plan = Plan((Stage(1, 16, 128, 40),), warmup=128, cooldown=1000)
    train(
        LlamaShape(1, 16, 24, 2, 40, 64),
        plan,
        Stream(ids, 0),
        tmp_path / "x.pt",
        report=lambda tokens, loss, seconds: losses.append(loss),
    )
    assert losses[-1] < losses[0] / 2


def test_schedule():
    assert PLAN.rate_at(0) == PLAN.rate
    assert PLAN.rate_at(PLAN.tokens - 64) == pytest.approx(PLAN.rate / 4)
    assert [PLAN.stage_at(tokens).layers for tokens in (0, 191, 192, 384, 575)] == [1, 1, 2, 4, 4]
    with pytest.raises(ValueError, match="576"):
        PLAN.stage_at(576)


def test_orthogonalise():
    stack = torch.randn(2, 3, 12, 6, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(stack))
    assert values.shape == (2, 3, 6)
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_twin_of_transformers(tmp_path):
    model = rounded(start(SHAPE, PLAN).model)
    ids = torch.randint(40, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        twin = to_transformers(model, end=0)
        torch.testing.assert_close(twin(input_ids=ids).logits, model(ids), atol=1e-5, rtol=1e-4)
        expected = torch.nn.functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])
        assert model.losses(ids).mean() == pytest.approx(expected.item(), rel=1e-5)
    assert SHAPE.parameters != (held := twin.num_parameters())
    assert held == model.shape.parameters


def test_saved_files_load_as_they_are(tmp_path):
    from transformers import AutoModelForCausalLM

    model = rounded(Llama(LlamaShape(1, 16, 24, 2, 280, 64), torch.Generator().manual_seed(0)))
    save(model, train_tokenizer(["def f(x):\n    return x\n" * 4], 270), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.arange(50)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, model(ids), atol=1e-5, rtol=1e-4)


def test_refuses_uneven_heads():
    with pytest.raises(ValueError, match="15"):
        LlamaShape(1, 15, 24, 2)

"""Distillation: the divergence, its fall on a toy, exact resume."""

import pytest
import torch

from spsbench.training.nano import distill
from spsbench.training.nano.data import Stream
from spsbench.training.nano.llama import Llama, LlamaShape

TARGET = LlamaShape(layers=2, width=16, hidden=24, heads=2, vocab=30, context=32)
LESSON = distill.Lesson(
    tokens=30 * 128, cooldown=1000, batch_tokens=128, length=16, micro_tokens=64, checkpoint_every=7
)
STREAM = Stream(torch.randint(30, (2000,), generator=torch.Generator().manual_seed(1)), seed=0)
SAMPLED = torch.randint(30, (40, 8), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def target():
    model = Llama(TARGET, torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.embed.mul_(30)  # a law that is far from uniform
    return model


def test_divergence_by_hand():
    generator = torch.Generator().manual_seed(0)
    hidden, embed = (torch.randn(n, 4, generator=generator) for n in (5, 9))
    taught, head = (torch.randn(n, 6, generator=generator) for n in (5, 9))
    q, p = (taught @ head.T).softmax(-1), (hidden @ embed.T).softmax(-1)
    relative = (q * (q / p).log()).sum(-1)
    distance = 1 - torch.minimum(q, p).sum(-1)
    for share, expected in (
        (0.0, relative),
        (1.0, distance),
        (0.25, 0.75 * relative + 0.25 * distance),
    ):
        found = distill.divergence(hidden, embed, taught, head, share)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_teaching_lowers_the_divergence(tmp_path, target):
    seen = []
    start = distill.sliced(target, (1,))
    distill.teach(
        start,
        target,
        LESSON,
        STREAM,
        SAMPLED,
        tmp_path / "draft.pt",
        report=lambda tokens, loss, seconds: seen.append(loss),
    )
    assert len(seen) == 30
    assert seen[-1] < seen[0] / 1.5


def test_resume_gives_the_same_weights(tmp_path, target):
    ends = []
    for name, cuts in (("whole", (None,)), ("cut", (10 * 128, None))):
        for cut in cuts:
            start = distill.sliced(target, (1,))
            path = tmp_path / f"{name}.pt"
            run = distill.teach(start, target, LESSON, STREAM, SAMPLED, path, until=cut)
        ends.append(run.model)
    for one, two in zip(*(model.parameters() for model in ends), strict=True):
        assert torch.equal(one, two)


def test_batches_hold_the_share_of_sampled_text():
    corpus, own = distill.rows_at(LESSON, STREAM, SAMPLED, 3)
    assert corpus.shape == (6, 16)
    assert own.shape == (4, 8)
    assert torch.equal(own, SAMPLED[12:16])


def test_draft_begins_as_layers_of_the_target(target):
    draft = distill.sliced(target, (1,))
    assert draft.shape.layers == 1
    assert torch.equal(draft.qkv[0], target.qkv[1])
    assert torch.equal(draft.embed, target.embed)
    with pytest.raises(ValueError, match="2"):
        distill.sliced(target, (2,))

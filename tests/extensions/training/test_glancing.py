"""Falcon's way of learning: what is shown of the answers, and what may follow from it."""

import pytest
import torch

from spsbench.extensions.training.losses import glanced
from spsbench.extensions.training.students import falcon
from spsbench.extensions.training.students.falcon import aligned
from spsbench.extensions.training.students.student import Moment
from spsbench.extensions.training.teacher import Teacher
from tests.extensions.training import small


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_share_of_what_is_wrong_is_shown(k):
    """0.4 of the Hamming distance at first, nothing in the end; beginnings of blocks."""
    wrong = torch.rand(400, k, generator=draw()) < 0.7
    distance = int(wrong.sum())
    for done, share in ((0.0, 0.4), (0.5, 0.2), (0.75, 0.1), (1.0, 0.0)):
        shown = glanced(wrong, done, draw(1))
        assert int(shown.sum()) == int(share * distance)
        assert not shown[:, -1].any()
        assert bool((shown[:, :-1] | ~shown[:, 1:]).all())
    assert not torch.equal(glanced(wrong, 0.0, draw(1)), glanced(wrong, 0.0, draw(2)))


def test_a_block_of_one_token_has_nothing_to_show():
    assert not glanced(torch.ones(9, 1, dtype=torch.bool), 0.0, draw()).any()


@pytest.fixture(scope="module")
def model():
    return small.target()


@pytest.mark.parametrize("k", [2, 3])
def test_in_the_end_it_learns_what_it_drafts(model, monkeypatch, k):
    """Without noise, and with nothing shown, blocks by their offsets are those of every place."""
    monkeypatch.setattr(falcon, "NOISE", 0.0)
    made = small.student("falcon", model, block=k, depth=k + 1)
    batch = small.batch(small.texts(model, 3))
    lesson = Teacher(model, small.VOCAB).teach(batch)
    with torch.no_grad():
        plain = list(made.guesses(batch, lesson, made.depth))
        taught = list(made.taught(batch, lesson, Moment(1.0, 3)))
        early = list(made.taught(batch, lesson, Moment(0.0, 3)))
    assert len(plain) == len(taught) == len(early) == made.depth
    for one, other in zip(plain, taught, strict=True):
        order = other.rows.argsort()
        assert torch.equal(other.rows[order], one.rows)
        torch.testing.assert_close(other.logits[order], one.logits)
        torch.testing.assert_close(other.extra[order], one.extra)
    assert len(early[0].rows) < len(plain[0].rows)
    assert len(early[k - 1].rows) == len(plain[k - 1].rows)
    assert not torch.equal(early[k - 1].logits, taught[k - 1].logits)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_nothing_is_foretold_from_what_it_must_not_know(model, offset):
    """A slot knows features up to its block's end, the pending token, and what is shown it."""
    k, length = 3, 13
    network = small.student("falcon", model, block=k).network
    width = model.config.hidden_size
    features, embedded = (
        torch.randn(2, length, width, generator=draw(s), dtype=torch.float64).requires_grad_()
        for s in (1, 2)
    )
    shown = torch.zeros(k, 2, length, dtype=torch.bool)
    shown[0, 0, 6 + offset] = shown[0, 1, 6 + offset] = shown[1, 1, 6 + offset] = True
    parts = aligned(network, features, embedded, offset, shown.flatten(1))
    checked = 0
    for slot, part in enumerate(parts):
        for row, out in zip(part.rows.tolist(), part.features, strict=True):
            text, end = row // length, row % length - 1 - slot
            assert (end - offset) % k == k - 1
            more = int(shown[:, text, end + 1].sum())
            assert slot >= more, "what is shown tells nothing"
            for given in (features, embedded):
                (found,) = torch.autograd.grad(out.sum(), given, retain_graph=True)
                reached = found.abs().sum(-1)
                assert not reached[1 - text].any()
                assert int(reached[text].nonzero().max()) == end + more
            checked += 1
    assert checked > 12

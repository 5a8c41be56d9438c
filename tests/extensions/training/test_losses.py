"""Every loss against its definition, over a whole vocabulary and over a part of it."""

import math
from dataclasses import replace

import pytest
import torch

from spsbench.errors import UsageError
from spsbench.extensions.training.losses import LOSSES, Distributions, loss_of
from spsbench.loop.sampling import Warp
from spsbench.spec import Spec


def drawn(known=None, top_p=1.0):
    """Laws at 4 places over 6 tokens, of which the drafter knows the first `known`."""
    generator = torch.Generator().manual_seed(3)
    q = Warp(1.0, 0, top_p)(torch.randn(4, 6, generator=generator, dtype=torch.float64) * 2)
    log_p = torch.randn(4, known or 6, generator=generator, dtype=torch.float64).log_softmax(-1)
    part = q[:, :known] if known else q
    laws = Distributions(log_p=log_p, q=part, log_q=part.log(), tokens=torch.tensor([0, 2, 1, -1]))
    p = [row.exp().tolist() + [0.0] * (6 - len(row)) for row in log_p]
    return laws, p, q.tolist()


def plog(x, ratio):
    return 0.0 if x == 0 else x * math.log(ratio)


def by_hand(name, p, q, known):
    overlap = sum(map(min, p, q))
    kl = sum(plog(b, b / a) for a, b in zip(p[:known], q[:known], strict=True))
    if name == "kl":
        return kl
    if name == "tv":
        return 1 - overlap if known < 6 else sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    if name == "acceptance":
        return -math.log(overlap)
    if name == "hybrid":
        w = math.exp(-3 * overlap)
        return w * kl + (1 - w) * (1 - overlap)
    if name == "jsd":
        mixed = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return sum(
            plog(a, a / m) / 2 + plog(b, b / m) / 2 if m else 0.0
            for a, b, m in zip(p, q, mixed, strict=True)
        )
    if name == "reverse-kl":
        return sum(plog(a, a / b) for a, b in zip(p[:known], q[:known], strict=True))
    if name == "top-k":
        best = sorted(range(known), key=lambda i: -q[i])[:10]
        return -sum(q[i] * math.log(p[i]) for i in best)
    raise AssertionError(name)


@pytest.mark.parametrize("known", [6, 4])
@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"ce"}))
def test_a_loss_is_its_definition(name, known):
    laws, p, q = drawn(None if known == 6 else known)
    expected = [by_hand(name, a, b, known) for a, b in zip(p, q, strict=True)]
    torch.testing.assert_close(loss_of(Spec.parse(name))(laws).tolist(), expected)


def test_cross_entropy_is_of_the_token_that_was_written():
    laws, p, _ = drawn()
    expected = [-math.log(p[0][0]), -math.log(p[1][2]), -math.log(p[2][1]), 0.0]
    torch.testing.assert_close(LOSSES["ce"](laws).tolist(), expected)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_no_gradient_is_lost_where_top_p_leaves_tokens_out(name):
    laws, _, _ = drawn(top_p=0.7)
    log_p = laws.log_p.clone().requires_grad_()
    loss_of(Spec.parse(name))(replace(laws, log_p=log_p)).sum().backward()
    assert log_p.grad.isfinite().all()
    assert log_p.grad.abs().sum() > 0


@pytest.mark.parametrize("said", ["mse", "jsd:beta=2", "kl:beta=0.5", "top-k:k=0", "jsd:beta=true"])
def test_what_is_no_loss_is_refused(said):
    with pytest.raises(UsageError):
        loss_of(Spec.parse(said))

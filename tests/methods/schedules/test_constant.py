"""The same K whatever happens."""

import torch

from spsbench.loop.types import Round
from spsbench.methods.schedules.by_history import Constant


def test_k_never_changes():
    past = [Round(4, 1, 0, [3], 0.5, 0.1, None)] * 3
    assert [Constant(k).k(past[:n]) for k in (0, 1, 9) for n in (0, 3)] == [0, 0, 1, 1, 9, 9]


def test_it_always_goes_on():
    for law in torch.tensor([1.0, 0.0]), torch.full((5,), 0.2):
        answer = Constant().go_on(law)
        assert bool(answer)
        assert answer.shape == ()

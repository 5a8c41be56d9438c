"""What logged log-probabilities say of the law that a token was drawn from."""

import numpy as np
import pytest
import torch

from spsbench.loop.sampling import Warp
from spsbench.planning.logs.target_chances import probabilities
from spsbench.settings.cell import WarpSettings

VOCAB, LENGTH = 50, 40


def logged(seed, top):
    """Log-probabilities as a server states them, with the true law's logits."""
    draw = np.random.default_rng(seed)
    logits = torch.tensor(draw.normal(size=(LENGTH, VOCAB)) * 3)
    logs = torch.log_softmax(logits, -1)
    return logits, logs, torch.topk(logs, top).values.tolist()


def drawn_from(law):
    generator = torch.Generator().manual_seed(3)
    return torch.multinomial(law, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.6}, {"top_k": 3}, {"top_k": 5, "top_p": 0.7}])
def test_cuts_are_exact_where_the_log_shows_all_that_is_kept(cut):
    logits, logs, tops = logged(1, 40)
    law = Warp(**{"temperature": 1.0, **cut})(logits)
    tokens = drawn_from(law)
    chosen = logs.gather(1, tokens[:, None])[:, 0].tolist()
    true = law.gather(1, tokens[:, None])[:, 0].numpy()
    assert np.allclose(probabilities(chosen, WarpSettings(**cut), tops), true, rtol=1e-5)


def test_what_is_not_logged_is_not_told():
    chosen, tops = [-1.0, -2.0], [[-1.0, -2.0], [-1.5, -2.0]]
    assert probabilities(chosen, WarpSettings(temperature=0.5), tops) is None
    assert probabilities(chosen, WarpSettings(top_p=0.9), None) is None
    assert probabilities(chosen, WarpSettings(top_p=0.9), tops) is None  # the nucleus is not seen

"""Views of packed models: a model less some layers is replayed as well."""

import pytest
import torch

from spsbench.engines.session.engine_config import prepared
from spsbench.engines.session.layer_skip import view
from spsbench.engines.session.session import FastLM
from spsbench.extensions.cpu.fast import prepare
from tests.oracles.batches import VARIANTS, X, deep
from tests.oracles.models import laws

pytestmark = pytest.mark.numeric


def test_of_a_prepared_model_the_view_is_replayed_as_well():
    model = deep("llama", dtype=torch.float32, head_dim=16)
    expected = laws(view(model, VARIANTS[0]), X)
    fast = deep("llama", dtype=torch.float32, head_dim=16)
    prepare(fast)
    made = view(fast, VARIANTS[0])
    for _ in range(3):  # traced, compared, replayed
        lm = FastLM(made)
        lm.append(torch.tensor(X[:3]), keep=0)
        got = lm.append(torch.tensor(X[3:]), keep=4).logits
        torch.testing.assert_close(got, expected[3:], rtol=1e-4, atol=1e-4)
    tape = prepared(made).replay
    assert tape.refused is None
    assert tape.programs
    assert tape is not prepared(fast).replay

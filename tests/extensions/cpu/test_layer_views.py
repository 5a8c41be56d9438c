"""Views of packed models: a model less some layers is replayed as well."""

import torch

from spsbench.engines.session.engine_config import prepared
from spsbench.engines.session.layer_skip import view
from spsbench.engines.session.session import FastLM
from spsbench.extensions.cpu.fast import Fast, prepare
from spsbench.loop.drafter_context import Variant
from tests.engines.test_layer_skip import VARIANTS, X, deep
from tests.tiny_models import WINDOWED, laws, tiny


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


def test_a_layer_without_attention_has_no_part_of_a_cache():
    """Gemma's layers have a number of their own, which was that of another one's keys."""
    kinds = ["sliding_attention", "full_attention"] * 2
    more = {**WINDOWED["gemma3"], "layer_types": kinds, "num_hidden_layers": 4}
    model = tiny("gemma3", dtype=torch.float32, sliding_window=5, **more)
    variant = Variant(attention=frozenset({1}))
    exact = laws(view(model, variant), [i % 12 for i in range(20)])
    prepare(model, threads=1)
    lm = Fast().session(view(model, variant))
    rows = [lm.append(torch.tensor([i % 12]), keep=1).logits for i in range(20)]
    torch.testing.assert_close(torch.cat(rows), exact, rtol=0, atol=1e-4)

"""Passes of fixed shape give what `eager` gives, whatever was fed, rejected, or grown past."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from spsbench.engines import buffers, graphs
from spsbench.engines.eager import EagerLM
from spsbench.engines.graphs import GraphLM
from tests.engines.test_eager import ancestry, close, tree
from tests.tiny_models import ARCHITECTURES

Make = Callable[..., PreTrainedModel]
VOCAB = 12

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 8, 16, 32, ..., so that short texts grow past several of them."""
    monkeypatch.setattr(buffers, "SMALLEST", 8)
    monkeypatch.setattr(graphs, "_IDLE", type(graphs._IDLE)())
    monkeypatch.setattr(graphs, "_REASONS", type(graphs._REASONS)())


@architectures
@pytest.mark.parametrize(
    ("attention", "dtype", "within"),
    [("sdpa", "float64", 1e-9), ("eager", "float64", 1e-5), ("sdpa", "float32", 1e-3)],
)
def test_any_script_gives_the_logits_of_eager(
    model: Make, architecture: str, attention: str, dtype: str, within: float
) -> None:
    target = model(architecture, attention=attention, dtype=getattr(torch, dtype))
    rows = set()
    for seed in range(3):
        rng, plain, ours = random.Random(seed), EagerLM(target), GraphLM(target)
        assert ours.reason is None
        for _ in range(14):
            fed = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 7))]
            keep, parents = rng.randrange(len(fed) + 1), None
            if rng.random() < 0.4 and plain.length:
                nodes = tree(rng, rng.randrange(1, 6))
                fed += [rng.randrange(VOCAB) for _ in nodes]
                keep, parents = len(fed), torch.tensor(nodes)
            before = plain.length
            a, b = (lm.append(torch.tensor(fed), keep, parents).logits for lm in (plain, ours))
            assert close(a, b, within)
            length, path = before + rng.randrange(len(fed) + 1), []
            if parents is not None:
                length = before + len(fed) - len(nodes)
                path = ancestry(rng.randrange(-1, len(nodes)), nodes)
            for lm in plain, ours:
                lm.commit(length, path)
                assert lm.length == length + len(path)
            rows |= {shape.reads for shape in ours._runner._passes}
        assert ours.reason is None
    assert len(rows) > 2

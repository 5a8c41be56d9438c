"""The recipe of the bundled pair at toy size: it learns, resumes, and writes what loads."""

import json

import pytest
import torch

import spsbench
from nano.__main__ import build
from nano.corpus import Corpus, Stream
from nano.measure import measure
from nano.train import Shape, Stage, train

SHAPE = Shape(width=16, hidden=24, heads=2, vocab=40, context=64)
STAGES = (Stage(1, 8, 64, 8), Stage(2, 16, 64, 6))
STREAM = Stream(torch.arange(2000) % 40, seed=0)
DRAFT = {"layers": 1, "steps": 2, "count": 8, "tokens": 12, "prompt_tokens": 4, "together": 8}


def test_training_lowers_the_loss_and_resumes_with_the_same_weights(tmp_path):
    whole = train(SHAPE, STAGES, STREAM, tmp_path / "whole")
    train(SHAPE, STAGES, STREAM, tmp_path / "cut", until=10)
    resumed = train(SHAPE, STAGES, STREAM, tmp_path / "cut")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    torch.manual_seed(0)
    first = measure(SHAPE.llama(1), whole, STREAM.ids, 16)
    assert first.draft_loss < 0.8 * first.target_loss


@pytest.mark.slow
def test_the_recipe_writes_a_pair_that_loads(tmp_path):
    corpus = Corpus(
        ["def f(x):\n    return x\n" * 9, "import os\n\n\nclass A:\n    pass\n" * 9] * 30,
        {"code": ["def g(x):\n    return -x\n" * 9]},
    )
    shape = Shape(width=16, hidden=24, heads=2, vocab=270, context=64)
    options = DRAFT | {"cost_seconds": 0.0, "worth": 0.0, "evaluations": 1, "held_out": 2}
    for _ in range(2):  # the second call finds everything there
        build(
            corpus,
            [text[:20] for text in corpus.train],
            tmp_path / "out",
            tmp_path / "work",
            shape=shape,
            stages=STAGES,
            draft=options,
            long={"steps": 2, "tokens": 50},
            pinned=False,
        )
    told = json.loads((tmp_path / "out" / "nano" / "training.json").read_text())
    assert 0 < told["figures"]["code"]["alpha"] <= 1
    pair = spsbench.load(target=str(tmp_path / "out/nano"), draft=str(tmp_path / "out/nano-draft"))
    assert pair.generate("def f", max_new_tokens=4).text

"""The recipe of the bundled pair at toy size: it learns, resumes, and writes what loads."""

import json

import pytest

import spsbench
from nano.__main__ import build
from nano.corpus import Corpus
from nano.train import Shape, Stage

STAGES = (Stage(1, 8, 64, 8), Stage(2, 16, 64, 6))
DRAFT = {"layers": 1, "steps": 2, "count": 8, "tokens": 12, "prompt_tokens": 4, "together": 8}


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

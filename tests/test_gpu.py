"""Texts on a GPU are those of a processor, whatever drafts them."""

import pytest
import torch

import spsbench
from tests.heads.stage import KINDS, TEXT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:::torch"),  # of its compiler
]

DRAFTERS = ["model", "tree:shape=2x2x1", "topk", "chains", "ngram", "lookahead", "self:window=9"]


@pytest.mark.parametrize(
    ("engine", "drafter"),
    [*(("eager", name) for name in DRAFTERS + KINDS), ("static", "model"), ("static", "eagle3")],
)
def test_in_float64_texts_are_those_of_a_processor(engine, drafter):
    how = {"drafter": drafter, "engine": engine, "dtype": "float64", "offline": True}
    texts = [
        spsbench.load(device=device, **how).generate(TEXT, max_new_tokens=48, seed=3).text
        for device in ("cpu", "cuda")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("drafter", ["model", "tree:shape=2x2x1", "topk", *KINDS])
def test_in_bfloat16_drafts_are_accepted(drafter):
    pair = spsbench.load(
        drafter=drafter, device="cuda", dtype="bfloat16", temperature=0.0, offline=True
    )
    text = pair.generate(TEXT, max_new_tokens=96)
    assert sum(played.accepted for played in text.rounds) > 9

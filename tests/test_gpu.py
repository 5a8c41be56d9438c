"""Texts on a GPU are those of a processor, whatever drafts them."""

import warnings

import pytest
import torch

import spsbench
from spsbench.loop.sampling import sample
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


def test_a_round_waits_for_the_device_once():
    pair = spsbench.load(device="cuda", dtype="float32", offline=True)
    pair.generate(TEXT, max_new_tokens=48)  # passes are recorded
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            text = pair.generate(TEXT, max_new_tokens=48)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    synchronising = [str(w.message) for w in waits if "synchroniz" in str(w.message)]
    assert len(text.rounds) <= len(synchronising) <= len(text.rounds) + 8  # of a text, not a round


@pytest.mark.parametrize("u", [0.0, 2**-53, 0.5, 1 - 2**-53])
def test_a_token_of_weight_zero_is_never_drawn_on_a_gpu(u):
    generator = torch.Generator("cuda").manual_seed(4)
    for size in 29, 128_256:
        probs = torch.rand(64, size, generator=generator, device="cuda")
        probs *= torch.rand(64, size, generator=generator, device="cuda") < 0.01
        probs[:, size // 2] += 1e-9
        drawn = sample(probs, torch.full((64,), u, dtype=torch.float64))
        assert (probs.gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize(
    "drafter", ["model", "tree:shape=2x2x1", "topk", "self:int8", "self:int4", *KINDS]
)
def test_in_bfloat16_drafts_are_accepted(drafter):
    pair = spsbench.load(
        drafter=drafter, device="cuda", dtype="bfloat16", temperature=0.0, offline=True
    )
    text = pair.generate(TEXT, max_new_tokens=96)
    assert sum(played.accepted for played in text.rounds) > 9

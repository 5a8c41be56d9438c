"""The bundled weights run by programs over packed weights: a refusal is silent, and only slower."""

import pytest
import torch

import spsbench
from spsbench.engines.session.engine_config import engine_config_of, prepared
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.methods.build import LoadedDecoderContext
from tests.heads.stage import KINDS, TEXT

pytestmark = [
    pytest.mark.needs_fast,
    pytest.mark.skipif(missing(torch.bfloat16) is not None, reason="no kernels for bfloat16"),
]


@pytest.mark.parametrize("weights", ["", "int8", "int4"], ids=["bf16", "int8", "int4"])
@pytest.mark.parametrize("drafter", ["model", *KINDS])
def test_bundled_pairs_run_programs_in_every_kind_of_weights(drafter, weights):
    options = {"draft": "nano-draft"} if drafter == "model" else {"drafter": drafter}
    if weights:
        options["weights"] = weights
    pair = spsbench.load(target="nano", dtype="bfloat16", k=3, offline=True, **options)
    pair.generate(TEXT, temperature=1.0, max_new_tokens=24, ignore_eos=True)
    loaded = pair.loaded
    for model in [loaded.target, *([loaded.draft] if drafter == "model" else [])]:
        assert engine_config_of(model).row_bits
        replay = prepared(model).replay
        assert replay.refused is None
        assert replay.counts[1] >= 2
    if drafter != "model":
        replay = LoadedDecoderContext(pair.cell, loaded).drafter()._frontier._replay
        assert replay.refused is None
        assert replay._checked

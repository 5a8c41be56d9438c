"""The bundled weights run by programs over packed weights: a refusal is silent, and only slower."""

from itertools import product

import pytest
import torch

import spsbench
from spsbench.engines.session.engine_config import get_prepared
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.methods.build import LoadedDecoderContext
from tests.heads.stage import KINDS, TEXT
from tests.variants import first

without = missing(torch.bfloat16)
pytestmark = [pytest.mark.needs_fast, pytest.mark.skipif(without is not None, reason=f"{without}")]


CODED = "int8", "int4"
PAIRS = [
    *product(["model", *KINDS], [""]),
    *product(["model"], CODED),
    *product(KINDS, CODED),
]


@pytest.mark.parametrize(("drafter", "weights"), first(len(KINDS) + 3, PAIRS))
def test_bundled_pairs_run_programs_in_every_kind_of_weights(drafter, weights):
    options = {"draft": "nano-draft"} if drafter == "model" else {"drafter": drafter}
    options |= {"weights": weights} if weights else {}
    pair = spsbench.load(target="nano", dtype="bfloat16", k=3, offline=True, **options)
    pair.generate(TEXT, temperature=1.0, max_new_tokens=24, ignore_eos=True)
    loaded = pair.loaded
    for model in [loaded.target, *([loaded.draft] if drafter == "model" else [])]:
        choice, replay = get_prepared(model)
        assert (choice.row_bits, replay.refused, replay.counts[1] >= 2) == (True, None, True)
    if drafter != "model":
        frontier = LoadedDecoderContext(pair.cell, loaded).drafter()._frontier
        replays = frontier._replay.replays.values()
        assert all(one.refused is None for one in replays)
        assert any(one.counts[1] for one in replays)

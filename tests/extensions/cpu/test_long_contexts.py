"""Hundreds of keys at odd lengths, over models whose layers are all in panels."""

import pytest
import torch

from spsbench.engines.session.session import FastLM
from tests.extensions.cpu.laid_out import laid_out
from tests.oracles.long_contexts import (
    DEFECTS,
    LENGTHS,
    SHAPES,
    WITHIN,
    greatest_error,
    model,
    seen_error,
)
from tests.variants import first


def session(architecture, width):
    packed = model(architecture, width, torch.float32)
    laid_out(packed)
    assert packed.config._attn_implementation == "spsbench"
    return FastLM(packed)


@pytest.mark.parametrize(("architecture", "width"), first(3, SHAPES))
def test_long_contexts_are_those_of_a_pass_without_a_cache(architecture, width):
    lm = session(architecture, width)
    for length in LENGTHS:
        assert greatest_error(lm, architecture, width, length) < WITHIN
        lm.commit(0)


@pytest.mark.parametrize("name", [name for name in DEFECTS if DEFECTS[name][0] != "eager"])
def test_a_defect_of_long_contexts_is_seen(name):
    (_, *other), planted = DEFECTS[name][0].split(), DEFECTS[name][1]
    architecture = other[0] if other else "llama"
    assert seen_error(session(architecture, 48), architecture, planted) > 10 * WITHIN

"""Hundreds of keys at odd lengths, heads of odd widths, prompts of several chunks: every engine.

A defect that shows only there is planted for each part that could have it, and must be seen.
"""

from itertools import product

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.engines.session.session import FastLM
from tests.oracles.long_contexts import (
    DEFECTS,
    LENGTHS,
    SHAPES,
    WITHIN,
    greatest_error,
    model,
    seen_error,
)

KINDS = {"eager": EagerLM, "fast": FastLM}


def session(engine, architecture, width):
    """In float32."""
    return KINDS[engine](model(architecture, width, torch.float32))


@pytest.mark.parametrize(
    ("engine", "architecture", "width"),
    [(engine, *shape) for engine, shape in product(KINDS, SHAPES)],
)
def test_long_contexts_are_those_of_a_pass_without_a_cache(engine, architecture, width):
    lm = session(engine, architecture, width)
    for length in LENGTHS:
        assert greatest_error(lm, architecture, width, length) < WITHIN
        lm.commit(0)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_long_contexts_is_seen(name):
    (engine, *other), planted = DEFECTS[name][0].split(), DEFECTS[name][1]
    architecture = other[0] if other else "llama"
    assert seen_error(session(engine, architecture, 48), architecture, planted) > 10 * WITHIN

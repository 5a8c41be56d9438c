"""Hundreds of keys at odd lengths, heads of odd widths, prompts of several chunks: every engine.

A defect that shows only there is planted for each part that could have it, and must be seen.
"""

from itertools import product

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.engines.session.session import FastLM
from tests.oracles.long_contexts import LENGTHS, SHAPES, WITHIN, greatest_error, model
from tests.variants import first

KINDS = {"eager": EagerLM, "fast": FastLM}


def session(engine, architecture, width):
    """In float32."""
    return KINDS[engine](model(architecture, width, torch.float32))


@pytest.mark.parametrize(
    ("engine", "architecture", "width"),
    first(4, [(engine, *shape) for shape, engine in product(SHAPES, KINDS)]),
)
def test_long_contexts_are_those_of_a_pass_without_a_cache(engine, architecture, width):
    lm = session(engine, architecture, width)
    for length in LENGTHS:
        assert greatest_error(lm, architecture, width, length) < WITHIN
        lm.commit(0)

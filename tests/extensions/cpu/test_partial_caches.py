"""Drafts of packed models over parts of their caches, and over codes: by programs."""

from unittest.mock import patch

import pytest
import torch

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.engine_config import prepared
from spsbench.engines.session.partial_cache import QuantisedFastLM, QuantisedLM
from spsbench.engines.session.quantised_cache import QuantisedLayer
from spsbench.extensions.cpu.fast import prepare
from spsbench.loop.drafter_context import CachePart
from tests.engines import test_partial_cache as parts
from tests.engines.test_partial_cache import check_greedy_texts, pair_of
from tests.engines.test_quantised_cache import (
    TEXT,
    WITHIN,
    assert_texts_of_a_batch_are_those_alone,
    greatest_gap,
    opened,
)
from tests.extensions.cpu.laid_out import laid_out
from tests.tiny_models import tiny


@pytest.mark.parametrize(
    ("dtype", "part"),
    [(torch.float64, CachePart(3, 1)), (torch.float32, CachePart(3, 4, chosen=True))],
)
def test_greedy_texts_over_a_part_are_the_target_s_own(dtype, part):
    model = tiny("llama", dtype=dtype, head_dim=16)
    prepare(model, threads=1)
    target, lm = pair_of(model, "fast", part)
    check_greedy_texts((parts.TEXT * 3)[:45], target, lm, 24)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [32, 16])
def test_laws_are_those_over_the_rows_that_codes_stand_for(bits, width):
    target, lm = opened("fast", bits, width=width, prepare=laid_out)
    assert type(lm) is (QuantisedFastLM if width == 32 else QuantisedLM)
    assert greatest_gap(target, lm) < WITHIN


@pytest.mark.parametrize("bits", [8, 4])
def test_greedy_texts_over_codes_are_the_target_s_own(bits):
    target, lm = opened("fast", bits, prepare=laid_out)
    check_greedy_texts(TEXT[:110], target, lm, 40)


@pytest.mark.parametrize("bits", [8, 4])
def test_passes_of_a_batch_give_what_each_gives_alone(bits):
    assert_texts_of_a_batch_are_those_alone(bits, laid_out, 1e-6)


def test_a_program_that_does_not_read_codes_is_refused():
    target, lm = opened("fast", 8, prepare=laid_out)
    assert greatest_gap(target, lm) < WITHIN
    assert prepared(target.model).replay.refused is None
    target, lm = opened("fast", 8, prepare=laid_out)
    with patch.object(QuantisedLayer, "addresses", PreallocatedLayer.addresses):
        assert greatest_gap(target, lm) < WITHIN  # by the layers' own code
    assert "differs from its own code" in prepared(target.model).replay.refused

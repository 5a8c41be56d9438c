"""Drafts of packed models over parts of their caches, by programs."""

import torch

from spsbench.extensions.cpu.fast import prepare
from spsbench.loop.drafter_context import CachePart
from tests.engines.test_partial_cache import TEXT, check_greedy_texts, pair_of
from tests.oracles.models import tiny


def test_greedy_texts_over_a_part_are_the_target_s_own():
    model = tiny("llama", dtype=torch.float64, head_dim=16)
    prepare(model, threads=1)
    target, lm = pair_of(model, "fast", CachePart(3, 1))
    check_greedy_texts((TEXT * 3)[:45], target, lm, 24)

"""Greedy texts with heads are the target's own, token for token: chains and trees."""

import pytest

from tests.heads.stage import WAYS, texts_of


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "qwen3"])
def test_greedy_texts(tmp_path, architecture):
    assert len(texts_of(architecture, tmp_path, WAYS, 300)) > 1

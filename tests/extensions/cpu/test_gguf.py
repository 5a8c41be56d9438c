"""Blocks of a GGUF file over panels: the logits of the dequantised numbers."""

import pytest
import torch

from spsbench.engines.quantization.layers import quantised_layers
from spsbench.extensions.cpu.fast import Fast
from spsbench.settings.models import BLOCKS

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from tests.oracles.gguf import find, loaded, logits, write


def test_blocks_are_kept_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds = {"attn_q": "Q5_0", "attn": "Q4_0", "ffn": "Q4_1"}
    blocks = find(write(tmp_path / "mixed.gguf", kinds=kinds))
    full, packed = loaded(blocks), loaded(blocks, BLOCKS)
    assert len(quantised_layers(packed)) == 13  # Q5_0 stays dequantised
    Fast().prepare(packed, threads=1)
    found = Fast().session(packed).append(torch.arange(3, 20), keep=17).logits
    assert torch.allclose(found, logits(full), rtol=0, atol=1e-4)

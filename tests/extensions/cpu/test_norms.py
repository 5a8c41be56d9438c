"""Norms in one operator compute what stock ones do, each row by itself, and come back."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from spsbench.extensions.cpu.kernels.steps import available
from spsbench.extensions.cpu.replay.fused_modules import (
    EARLY,
    LATE,
    PLUS,
    Norm,
    exchange_norms,
    way_of,
)
from tests.extensions.cpu.laid_out import random, without_compiler

pytestmark = pytest.mark.numeric

WAYS = {LlamaRMSNorm: EARLY, Qwen3RMSNorm: EARLY, Olmo2RMSNorm: LATE, GemmaRMSNorm: PLUS}
needs_c = pytest.mark.skipif(not available(), reason="needs a C compiler")


def norm(width, dtype, kind=LlamaRMSNorm):
    made = kind(width, eps=1e-3).to(dtype).requires_grad_(False)
    made.weight.copy_(random(width, dtype=dtype))
    return made


class OddRMSNorm(LlamaRMSNorm):
    """Adds what no other does."""

    def forward(self, hidden_states):
        """A little more."""
        made: torch.Tensor = super().forward(hidden_states) + 0.1
        return made


class NamelessRMSNorm(nn.Module):
    """Is made in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(4)), 1e-6


def test_how_a_norm_is_rounded_is_found_by_trial():
    for kind, way in WAYS.items():
        assert way_of(kind(4)) == way
    for other in OddRMSNorm(4), NamelessRMSNorm(), nn.LayerNorm(4):
        assert way_of(other) is None


@needs_c
def test_only_what_is_the_usual_norm_is_exchanged():
    watched, half = LlamaRMSNorm(4), LlamaRMSNorm(4).half()
    watched.register_forward_hook(lambda module, given, made: None)
    inner = nn.Sequential(LlamaRMSNorm(4), Qwen3RMSNorm(4).bfloat16())
    model = nn.Sequential(inner, OddRMSNorm(4), LlamaRMSNorm(4).double(), watched, half)
    before = list(model.state_dict())
    exchange_norms(model)
    assert [type(module) for module in inner] == [Norm, Norm]
    assert not any(isinstance(module, Norm) for module in list(model)[1:])
    assert list(model.state_dict()) == before
    again = deepcopy(model)
    assert [type(module) for module in again[0]] == [LlamaRMSNorm, Qwen3RMSNorm]


def test_without_a_compiler_norms_stay(tmp_path):
    model = nn.Sequential(LlamaRMSNorm(4))
    with without_compiler(tmp_path):
        exchange_norms(model)
        assert type(model[0]) is LlamaRMSNorm

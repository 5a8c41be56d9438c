"""The fast engine over the decoders of the field: the tokens of eager, packed and replayed."""

import copy

import pytest
import torch

from spsbench.engines.eager import Eager
from spsbench.engines.session.engine_config import get_prepared
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.packing.experts import PackedExperts
from spsbench.extensions.cpu.replay.attention import NAME
from spsbench.loop.sampling import Warp
from tests.decoding import text_of
from tests.extensions.cpu.architectures import MODELS, random_model
from tests.extensions.cpu.laid_out import laid_out

EAGER = {"bloom"}  # a cache of another form
OF_THEIR_OWN = {"codegen", "falcon", "gptj", "mpt"}  # attention of their own, never replayed
WITH_EXPERTS = {"gpt_oss", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"}
QUICK = {"falcon", "gemma2"}
QUICK_FIRST = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS
]


def packed(model):
    """A copy with all layers in panels."""
    copied = copy.deepcopy(model)
    laid_out(copied)
    return copied


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_one_seed_gives_the_tokens_of_eager(name):
    pair = random_model(name, 0), random_model(name, 1)
    fast = packed(pair[0]), packed(pair[1])
    for warp in Warp(0), Warp(1.0):
        assert text_of(Fast(), *fast, 18, warp) == text_of(Eager(), *pair, 18, warp)
    for model in fast:
        found = get_prepared(model)
        assert found.choice.engine == ("eager" if name in EAGER else "fast")
        if name in EAGER:
            continue
        assert found.choice.packed_linears == found.choice.linears > 0
        assert (model.config._attn_implementation == NAME) == (name not in OF_THEIR_OWN)
        routed = any(isinstance(module, PackedExperts) for module in model.modules())
        assert routed == (name in WITH_EXPERTS)


def test_a_model_without_any_other_floats_stays_one_of_float32():
    """Norms without weights, tied embeddings: all is in panels of halves."""
    model = random_model("olmo", 0, tie_word_embeddings=True)
    fast = packed(model)
    assert get_prepared(fast).choice.engine == "fast"
    assert fast.dtype == torch.float32
    assert text_of(Fast(), fast, fast, 18, Warp(1.0)) == text_of(
        Eager(), model, model, 18, Warp(1.0)
    )

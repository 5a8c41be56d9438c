"""What is exchanged in a recorded pass computes the same, in fewer operators, and is put back."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.cuda.lean import SHARED, lean, module_is_rms_norm
from spsbench.engines.eager import EagerLM
from tests.engines.test_sessions import close
from tests.tiny_models import ARCHITECTURES, tiny

Make = Callable[..., PreTrainedModel]
KINDS = ("pow", "rsqrt", "tanh", "mean", "clone", "linear", "rms_norm", "gelu")


class Counted(TorchDispatchMode):
    """Counts operators by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def counts(model: PreTrainedModel, kind: type[EagerLM], fed: int) -> Counter[str]:
    lm = kind(model)
    lm.append(torch.arange(3), keep=0)
    with Counted() as counted:
        lm.append(torch.arange(fed), keep=fed)
    return counted.names


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_norms_and_activations_are_one_operator_each(architecture: str) -> None:
    target = tiny(architecture, dtype=torch.float32)
    before, after = counts(target, EagerLM, 5), counts(target, GraphLM, 5)
    assert before["rsqrt"] + before["tanh"] > 0
    assert after["rsqrt"] == after["tanh"] == after["pow"] == 0
    assert after["linear"] == before["linear"]
    assert GraphLM(target).reason is None


@pytest.mark.parametrize("fed", [1, 5])
def test_keys_are_not_copied_for_each_head_that_shares_them(fed: int, model: Make) -> None:
    """Of the repeated ones two copies a layer are made: 2 layers, 2 groups."""
    target, sizes = model("llama", dtype=torch.float32), []
    scaled = torch.nn.functional.scaled_dot_product_attention

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func is scaled:
                sizes.append([x.shape[1] for x in args[:3]])
            return func(*args, **(kwargs or {}))

    lm = GraphLM(target)
    lm.append(torch.arange(3), keep=0)
    with Sizes():
        lm.append(torch.arange(fed), keep=fed)
    assert sizes == [[2, 2, 2]] * 2  # four heads of queries as rows of two


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_is_put_back(architecture: str) -> None:
    target = tiny(architecture, dtype=torch.float32)
    with lean(target):
        assert target.config._attn_implementation == SHARED
        assert any("forward" in vars(module) for module in target.modules())
    with pytest.raises(KeyError), lean(target):
        raise KeyError
    assert target.config._attn_implementation == "sdpa"
    assert not any("forward" in vars(module) for module in target.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_as_near_to_the_truth_as_eager(dtype: torch.dtype) -> None:
    ids = torch.arange(12) % 12
    for architecture in ARCHITECTURES:
        half = tiny(architecture, dtype=dtype)
        lms = EagerLM(tiny(architecture)), EagerLM(half), GraphLM(half)
        for lm in lms:
            lm.append(ids[:7], keep=0)
        truth, plain, ours = (lm.append(ids[7:], keep=5).logits.double() for lm in lms)
        assert (ours - truth).abs().max() <= 1.5 * (plain - truth).abs().max() + 1e-3


def test_other_norms_are_left_alone() -> None:
    """Gemma's weight counts from one; in float64 transformers' norm stays in float32."""
    assert module_is_rms_norm(LlamaRMSNorm(4))
    assert module_is_rms_norm(Qwen3RMSNorm(4))
    assert not module_is_rms_norm(GemmaRMSNorm(4))
    assert not module_is_rms_norm(LlamaRMSNorm(4).double())
    assert not module_is_rms_norm(nn.LayerNorm(4))

    class OddRMSNorm(LlamaRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    assert not module_is_rms_norm(OddRMSNorm(4))


def test_a_forward_that_somebody_exchanged_is_kept() -> None:
    target = tiny("llama", dtype=torch.float32)
    norm, seen = target.model.norm, []
    norm.forward = lambda x: seen.append(1) or LlamaRMSNorm.forward(norm, x)
    plain = tiny("llama", dtype=torch.float32)
    a, b = (GraphLM(m).append(torch.tensor([1, 2]), keep=2).logits for m in (target, plain))
    assert seen
    assert close(a, b, 1e-4)

"""Packed layers compute what stock ones do; copies of them are stock; tied rows are read back."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spsbench.engines import packing
from spsbench.engines.packing import (
    LAYOUTS,
    PackedEmbedding,
    PackedLinear,
    find_layout,
    pack,
    slots,
    tied,
    unpack,
    unpackable,
)
from tests.tiny_models import laws, tiny

Make = Callable[..., PreTrainedModel]
dtypes = pytest.mark.parametrize("dtype", LAYOUTS, ids=str)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def pack_everything(model: nn.Module, least: int = 4) -> int:
    found = list(slots(model))
    for slot in found:
        pack(slot, least, tied(model, slot))
    return len(found)


@dtypes
@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_a_packed_product_is_the_stock_one(dtype: torch.dtype, least: int, biased: bool) -> None:
    weight, bias = random(70, 50, dtype=dtype), random(70, dtype=dtype) if biased else None
    packed = PackedLinear(weight, bias, least)
    for shape in (1, 1, 50), (1, 2, 50), (1, 5, 50), (3, 50), (1, 40, 50):
        x = random(*shape, dtype=dtype)
        torch.testing.assert_close(packed(x), nn.functional.linear(x, weight, bias))


@dtypes
def test_a_copy_of_a_packed_layer_is_the_stock_layer(dtype: torch.dtype) -> None:
    weight, bias = random(70, 50, dtype=dtype), random(70, dtype=dtype)
    copied = copy.deepcopy(PackedLinear(weight, bias))
    assert type(copied) is nn.Linear
    assert torch.equal(copied.weight, weight)
    assert torch.equal(copied.bias, bias)


@dtypes
@pytest.mark.parametrize("shape", [(512, 64), (1003, 192), (70, 50)])
def test_rows_of_a_packed_head_are_read_back_exactly(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight = random(*shape, dtype=dtype)
    head = PackedLinear(weight, None)
    layout = find_layout(head, weight)
    if layout is None:
        pytest.skip("this machine's oneDNN has another layout: the embedding is kept beside it")
    ids = torch.tensor([[0, 1, shape[0] - 1, 7]])
    assert torch.equal(PackedEmbedding(head, layout)(ids), weight[ids])


def test_a_layout_that_does_not_fit_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(512, 64, dtype=torch.float32)
    head = PackedLinear(weight, None)
    for wrong in (64, 16, 1), (16, 32, 1), (7, 64, 1):
        monkeypatch.setitem(LAYOUTS, torch.float32, wrong)
        assert find_layout(head, weight) is None


@dtypes
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_a_packed_model_computes_the_same_and_can_be_unpacked(
    dtype: torch.dtype, architecture: str
) -> None:
    model = tiny(architecture, dtype=dtype)
    before, parameters = laws(model, [1, 2, 3]), model.num_parameters()
    count = pack_everything(model)
    assert count == sum(isinstance(m, PackedLinear) for m in model.modules()) > 8
    assert model.num_parameters() == parameters
    within = 1e-4 if dtype == torch.float32 else 0.05
    assert (laws(model, [1, 2, 3]) - before).abs().max() <= within * before.abs().max()
    copied = copy.deepcopy(model).float()
    assert not any(isinstance(m, PackedLinear) for m in copied.modules())
    unpack(model)  # Conv1D comes back as nn.Linear, which may add up in another order
    torch.testing.assert_close(laws(model, [1, 2, 3]), before)


@pytest.mark.parametrize("kept", [False, True])
def test_tied_embeddings_are_in_memory_once(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or stay beside the head, where its layout is not known."""
    if kept:
        monkeypatch.setattr(packing, "find_layout", lambda head, weight: None)
    model = tiny("llama", vocab=512, dtype=torch.float32, tie_word_embeddings=True)
    assert model.model.embed_tokens.weight is model.lm_head.weight
    before = laws(model, [5, 400, 511])
    pack_everything(model)
    kind = nn.Embedding if kept else PackedEmbedding
    assert type(model.model.embed_tokens) is kind
    torch.testing.assert_close(laws(model, [5, 400, 511]), before, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_packed_is_said() -> None:
    assert "not float64" in (unpackable(tiny("llama")) or "")
    assert "no linear layers" in (unpackable(nn.Sequential(nn.ReLU())) or "")
    assert unpackable(nn.Sequential(Conv1D(4, 4))) is None
    monkey = nn.Linear(4, 4, device="meta")
    assert "meta" in (unpackable(nn.Sequential(monkey)) or "")

"""Packed layers compute what stock ones do; copies of them are stock; tied rows are read back."""

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from spsbench.engines.linear_layers import PackedEmbedding, embeddings, exchange, restore, slots
from spsbench.extensions.cpu.kernels import native
from spsbench.extensions.cpu.packing import panels as panel_chapter
from spsbench.extensions.cpu.packing.panels import (
    DEPTH,
    HALVES,
    LAYOUTS,
    PanelLinear,
    layout_of,
    unpackable,
)
from tests.extensions.cpu.laid_out import random, without_compiler
from tests.oracles.models import laws, tiny

pytestmark = pytest.mark.numeric

each_layout = pytest.mark.parametrize("layout", LAYOUTS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def laid_out(layout, weight, bias):
    if (reason := LAYOUTS[layout].refuses(weight)) is not None:
        pytest.skip(reason)
    return LAYOUTS[layout](weight, bias)


def pack_everything(model, layout):
    """All that the layout takes."""
    tables = embeddings(model)
    found = [slot for slot in slots(model) if LAYOUTS[layout].refuses(slot.weight) is None]
    if not found:
        pytest.skip(f"{layout} takes nothing of {model.dtype} here")
    for slot in found:
        exchange(slot, LAYOUTS[layout](slot.weight, slot.layer.bias), tables)
    return len(found)


@pytest.mark.parametrize("tie", [False, True])
def test_halves_of_a_float32_model_are_half_of_the_bytes_and_the_same_logits(tie, monkeypatch):
    """A number that is no bfloat16 keeps its matrix whole; other engines see float32 again."""
    sizes, found = [], []
    for halved in True, False:
        model = tiny("llama", vocab=512, dtype=torch.bfloat16, tie_word_embeddings=tie).float()
        odd = model.model.layers[0].mlp.up_proj.weight
        odd.data[3, 5] += 1e-3
        with monkeypatch.context() as patch:
            if not halved:
                patch.setattr(panel_chapter, "halvable", lambda weight: False)
            stock = copy.deepcopy(model)
            pack_everything(model, "panels")
            found.append(laws(model, [1, 2, 3]))
            panels = [each.weight for each in model.modules() if isinstance(each, PanelLinear)]
            sizes.append(sum(weight.nbytes for weight in panels))
            assert sum(weight.dtype == HALVES for weight in panels) == halved * (len(panels) - 1)
            assert model.dtype == torch.float32
            ids = torch.tensor([0, 7, 511, 7])
            rows = stock.get_input_embeddings().weight[ids]
            assert torch.equal(model.get_input_embeddings()(ids), rows)
            copied = copy.deepcopy(model).state_dict()
            assert all(torch.equal(copied[name], x) for name, x in stock.state_dict().items())
    assert torch.equal(*found)
    assert sizes[0] < 0.6 * sizes[1]


@each_layout
@dtypes
def test_a_copy_of_a_packed_layer_is_the_stock_layer(layout, dtype):
    weight, bias = random(70, 50, dtype=dtype), random(70, dtype=dtype)
    copied = copy.deepcopy(laid_out(layout, weight, bias))
    assert type(copied) is nn.Linear
    assert torch.equal(copied.weight, weight)
    assert torch.equal(copied.bias, bias)


@each_layout
@dtypes
@pytest.mark.parametrize("shape", [(512, 64), (1003, 192), (70, 50)])
def test_rows_of_a_packed_head_are_read_back_exactly(layout, dtype, shape):
    weight = random(*shape, dtype=dtype)
    head = laid_out(layout, weight, None)
    ids = torch.tensor([[0, 1, shape[0] - 1, 7]])
    assert torch.equal(PackedEmbedding(head)(ids), weight[ids])


@each_layout
@dtypes
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_a_packed_model_computes_the_same_and_can_be_restored(layout, dtype, architecture):
    model = tiny(architecture, dtype=dtype)
    before = laws(model, [1, 2, 3])
    count = pack_everything(model, layout)
    assert count == sum(isinstance(m, LAYOUTS[layout]) for m in model.modules()) > 8
    within = 1e-4 if dtype == torch.float32 else 0.05
    assert (laws(model, [1, 2, 3]) - before).abs().max() <= within * before.abs().max()
    copied = copy.deepcopy(model).float()
    assert not any(isinstance(m, LAYOUTS[layout]) for m in copied.modules())
    restore(model)  # Conv1D comes back as nn.Linear, which may add up in another order
    torch.testing.assert_close(laws(model, [1, 2, 3]), before)


@each_layout
def test_what_was_tied_is_tied_again(layout):
    model = tiny("llama", vocab=512, dtype=torch.float32, tie_word_embeddings=True)
    pack_everything(model, layout)
    for whole in copy.deepcopy(model), model:
        restore(whole)
        assert type(whole.model.embed_tokens) is nn.Embedding
        assert whole.model.embed_tokens.weight is whole.lm_head.weight


@each_layout
def test_an_id_beyond_the_rows_is_refused(layout):
    weight = random(70, 50, dtype=torch.float32)
    head = laid_out(layout, weight, None)
    for wrong in 70, -1:
        with pytest.raises(IndexError):
            PackedEmbedding(head)(torch.tensor([[3, wrong]]))


def test_layers_that_hang_twice_or_are_watched_are_left_alone():
    shared, watched, plain = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    watched.register_forward_pre_hook(lambda module, given: None)
    model = nn.Sequential(shared, watched, nn.Sequential(shared, plain))
    assert [slot.layer for slot in slots(model)] == [plain]


def test_without_a_compiler_no_layout_is_left(tmp_path):
    weight = random(64, 64, dtype=torch.float32)
    assert layout_of(weight) == "panels"
    with without_compiler(tmp_path):
        assert layout_of(weight) is None


def test_what_cannot_be_packed_is_said(monkeypatch):
    assert "not torch.float64" in (unpackable(tiny("llama")) or "")
    assert "no linear layers" in (unpackable(nn.Sequential(nn.ReLU())) or "")
    assert unpackable(nn.Sequential(Conv1D(4, 4))) is None
    monkey = nn.Linear(4, 4, device="meta")
    assert "meta" in (unpackable(nn.Sequential(monkey)) or "")
    assert native.KINDS.keys() == DEPTH.keys()

"""A changed model is judged by float32 and by what the stock one's own rounding is."""

import pytest
import torch
from torch.nn.functional import linear

from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.packing.logit_check import LogitCheck
from spsbench.extensions.cpu.packing.panels import LAYOUTS
from tests.extensions.cpu.laid_out import laid_out
from tests.oracles.models import ARCHITECTURES, laws, tiny
from tests.variants import first

pytestmark = pytest.mark.numeric

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
IDS = [90, 3, 41, 17, 66]


def packed_with(product, model):
    """How many layers stay packed where `product(x, weight)` is what their layout computes.

    And how far logits are moved, of the greatest.
    """
    stock, kind = laws(model, IDS), LAYOUTS["panels"]
    own, kind.forward = kind.forward, lambda self, x: product(x, self.dense())
    try:
        count = laid_out(model).packed_linears
        return count, float((laws(model, IDS) - stock).abs().max() / stock.abs().max())
    finally:
        kind.forward = own


def rounds_otherwise(x, weight):
    """Right, and a quarter of bfloat16's last place away before it is rounded."""
    return (linear(x.float(), weight.float()) * (1 + 2**-10)).to(x.dtype)


def loses_an_input(x, weight):
    return linear(x[..., :-1], weight[:, :-1])


def loses_an_output(x, weight):
    made = linear(x, weight)
    made[..., -1] = 0
    return made


def shrinks(x, weight):
    return linear(x, weight) * 0.95


def test_weights_that_enlarge_rounding_are_packed():
    """As trained ones do: correct products may end far apart, and none is to blame."""
    model = tiny("llama", 96, dtype=torch.bfloat16, scale=5.0, num_hidden_layers=8)
    count, moved = packed_with(rounds_otherwise, model)
    assert count == 57
    assert moved > 0.05


@dtypes
@pytest.mark.parametrize("wrong", [loses_an_input, loses_an_output, shrinks])
@pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))
def test_a_wrong_layout_is_not(architecture, wrong, dtype):
    model = tiny(architecture, 96, dtype=dtype, scale=1.0)
    assert packed_with(wrong, model)[0] == 0


def test_a_model_that_is_all_noise_is_left_as_it_is():
    model = tiny("llama", 96, dtype=torch.bfloat16, scale=8.0, num_hidden_layers=12)
    check = LogitCheck(model)
    check.refine(model)
    assert not check.holds(model)


def test_a_plain_pass_is_that_of_one_thread_whatever_there_are():
    model, used = tiny("llama", 96, dtype=torch.bfloat16), set()
    model.register_forward_pre_hook(lambda *_: used.add(torch.get_num_threads()))
    with threads(2):
        assert LogitCheck(model).holds(model)
    assert used == {1}

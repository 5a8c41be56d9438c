"""What a round asks of a device whose every look the host waits for; a processor plays it."""

from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from spsbench.engines.eager import EagerLM
from spsbench.engines.quantization.layers import dequantise, quantise
from spsbench.engines.static import Static, StaticLM
from spsbench.loop.sampling import Warp
from spsbench.methods.drafters.model import ModelDrafter
from tests.automata import StateTable
from tests.decoding import rounds_of
from tests.heads.head_faults import FAMILIES, VOCAB
from tests.heads.stage import HeadSite
from tests.oracles.models import DEVICE, tiny

THERE, HOST = torch.device("xpu"), torch.device("cpu")
READS = {"tolist", "item", "numpy", "nonzero", "equal", "__bool__", "__int__", "__float__"}
MOVES = {"to", "cpu", "copy_", "__getitem__", "__setitem__"}
TABLE = StateTable(VOCAB, ({1: 0, 2: 1}, {3: 0}), frozenset(), 0)

pytestmark = pytest.mark.skipif(DEVICE != HOST, reason="plays a device of its own")


class SecondDevice(TorchFunctionMode):
    """Tensors that are made or sent there say so; operands of both devices are an error."""

    def __init__(self):
        super().__init__()
        self.waits, self.sent = [], []

    def hold(self, module):
        for tensor in (*module.parameters(), *module.buffers(), getattr(module, "ids", None)):
            if tensor is not None:
                tensor.is_there = True
        return module

    def __torch_function__(self, func, types, args=(), kwargs=None):
        leaves, name = tree_leaves((args, kwargs)), func.__name__
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        away = any(hasattr(x, "is_there") for x in tensors)
        if func == Tensor.device.__get__:
            return THERE if away else HOST
        mixed = away and any(x.ndim and not hasattr(x, "is_there") for x in tensors)
        assert not mixed or name in MOVES, f"{name} of tensors of two devices"
        place = next((x for x in leaves if isinstance(x, torch.device)), None)
        place = HOST if name == "cpu" else place or (THERE if away else HOST)
        args, kwargs = tree_map_only(torch.device, lambda _: HOST, (args, kwargs or {}))
        out = func(*args, **kwargs)
        sent = name == "to" and place == THERE and not away
        blocks = name in READS or (name in MOVES and (mixed or place == HOST))
        if (away and blocks) or (sent and not kwargs.get("non_blocking")):
            self.waits.append(name)
        self.sent += [out] if sent else []
        moved = name in ("to", "cpu") and away != (place == THERE)
        results = tree_leaves(out.clone() if moved else out)
        for tensor in results if place == THERE else ():
            if isinstance(tensor, Tensor):
                tensor.is_there = True
        return results[0] if moved else out


@pytest.mark.parametrize("engine", [EagerLM, StaticLM])
@pytest.mark.parametrize("drafter", ["model", "constrained model", "eagle3", "medusa"])
def test_the_host_waits_once_a_round(monkeypatch, tmp_path, engine, drafter):
    event = MagicMock()
    event.return_value.elapsed_time.return_value = 0.0
    monkeypatch.setattr(torch, "Event", event)
    monkeypatch.setattr(torch.accelerator, "current_stream", MagicMock())
    device, parts, site = SecondDevice(), {"warp": Warp(1.0)}, None
    target, draft = (tiny("llama", VOCAB, num_hidden_layers=n) for n in (6, 1))
    if drafter in FAMILIES:
        site = HeadSite(FAMILIES[drafter](tmp_path, target), target)
        network = device.hold(site.drafter()._frontier.network)
        if engine is StaticLM:
            Static().pack(network)
    elif drafter == "constrained model":
        parts["constraint"] = TABLE.constraint()
    for model in target, draft:
        device.hold(model)
    with device:
        opened = site.drafter(sampled=True) if site else ModelDrafter(engine(draft))
        lm = engine(target, layers=opened.layers)
        device.waits.clear()
        rounds = rounds_of(lm, opened, 9, **parts)
    reads = device.waits if len(parts) == 1 else [x for x in device.waits if x != "tolist"]
    assert reads == ["cpu"] * len(rounds)
    assert not [x for x in device.sent if x.dtype == torch.bool or x.shape[-1:] == (VOCAB,)]


def test_int8_stays_codes_which_bfloat16_has():
    model, device = tiny("llama", dtype=torch.bfloat16), SecondDevice()
    quantise(model, "int8")
    x, codes = torch.randn(3, 32, dtype=torch.bfloat16), model.lm_head.codes
    with device:
        dequantise(device.hold(model))
    assert model.lm_head.numbers.dtype == torch.bfloat16
    exact = x.double() @ codes.dense(torch.float64).T
    torch.testing.assert_close(model.lm_head(x).double(), exact, rtol=0.01, atol=0.01)

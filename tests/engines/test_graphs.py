"""Passes of fixed shape give what `eager` gives, run or recorded and replayed.

Without CUDA a recording is a list of operators: a replay runs them again on the same tensors, so
that whatever Python decided while recording is frozen, as in a CUDA graph.
"""

import copy
import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spsbench.engines.cuda import graphs, static
from spsbench.engines.cuda.graphs import GraphLM
from spsbench.engines.cuda.static import lean
from spsbench.engines.eager import EagerLM
from spsbench.engines.session import cache
from spsbench.extensions.cpu.replay.attention import NAME
from spsbench.loop import decode as loop
from spsbench.loop.sampling import Warp
from spsbench.methods.drafters.model import ModelDrafter
from tests.decoding import rounds_of
from tests.engines.test_sessions import ancestry, close, grown, tree
from tests.simulated_device import READS, tensors_in
from tests.tiny_models import ARCHITECTURES, laws, tiny

pytestmark = pytest.mark.slow  # a device is simulated, operator by operator

VOCAB = 12
architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Tape(TorchDispatchMode):
    """A recording: the operators between begin and end, with their operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.result: Any = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.split(".")[0] in READS | {"item"}:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, list(tensors_in(out))))
        return out

    def replay(self):
        for func, args, kwargs, results in self.steps:
            for old, new in zip(results, tensors_in(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        return self.result


def record(self, work):
    work()
    with Tape() as tape:
        tape.result = work()
    return tape


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    """Rows of 8, 16, 32, ..., so that short texts grow past several of them."""
    monkeypatch.setattr(cache, "FIRST", 8)
    monkeypatch.setattr(static, "ROOM", 8)


@pytest.fixture
def recorded(monkeypatch):
    """Record and replay passes on the CPU."""
    monkeypatch.setattr(static, "records", lambda device: True)
    monkeypatch.setattr(static.Recorder, "record", record)


@architectures
def test_any_script_gives_the_logits_of_eager(model, architecture, recorded):
    target, rows = model(architecture, dtype=torch.float64), set()
    for seed in range(2):
        rng, plain, ours = random.Random(seed), EagerLM(target), GraphLM(target)
        for _ in range(14):
            fed = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 7))]
            nodes = tree(rng, rng.randrange(1, 6)) if rng.random() < 0.4 and plain.length else []
            before = plain.length + len(fed)
            if nodes:
                drafted, cuts = [rng.randrange(VOCAB) for _ in nodes], rng.random()
                a, b = (grown(random.Random(cuts), lm, fed, drafted, nodes) for lm in (plain, ours))
                path = ancestry(rng.randrange(-1, len(nodes)), nodes)
            else:
                keep, path = rng.randrange(len(fed) + 1), []
                a, b = (lm.append(torch.tensor(fed), keep).logits for lm in (plain, ours))
                before -= rng.randrange(len(fed))
            assert close(a, b)
            for lm in plain, ours:
                lm.commit(before, path)
                assert lm.length == before + len(path)
            rows |= {shape.reads for shape in ours._runner._passes}
        assert ours.reason is None
    assert len(rows) > 2


def generate(kind, target, draft, k=3):
    drafter, warp = ModelDrafter(kind(draft)), Warp(0.8, top_k=8, top_p=0.9)
    rounds = rounds_of(kind(target), drafter, 24, prompt=[1, 2, 3, 4], k=k, warp=warp, seed=3)
    return [(turn.drafted, turn.accepted, turn.tokens, turn.finish) for turn in rounds]


@architectures
def test_a_generation_gives_the_tokens_of_eager(model, architecture, recorded):
    target, draft = model(architecture), model(architecture, noise=0.1)
    for k in 0, 4:
        assert generate(GraphLM, target, draft, k) == generate(EagerLM, target, draft, k)
    assert graphs.known(target).reason is graphs.known(draft).reason is None


def test_prompts_and_passes_beyond_the_largest_shape_run_as_eager():
    target, rng = tiny("llama"), random.Random(1)
    ids = torch.tensor([rng.randrange(VOCAB) for _ in range(190)])
    ours = GraphLM(target)
    ours.append(ids[:30], keep=0)
    assert not ours._runner._passes
    logits = [ours.append(ids[30:170], keep=3).logits, ours.append(ids[170:], keep=20).logits]
    assert close(torch.cat(logits), laws(target, ids.tolist())[167:])
    assert {shape.fed for shape in ours._runner._passes} == {33}


def test_logits_and_hidden_states_outlive_the_next_replay(model, recorded):
    ours = GraphLM(model("llama"), layers=(1,))
    first = ours.append(torch.tensor([1]), keep=1)
    kept = copy.deepcopy((first.logits, first.hidden[1]))
    ours.append(torch.tensor([2]), keep=1)
    assert all(map(torch.equal, kept, (first.logits, first.hidden[1])))


def test_sessions_in_turn_share_a_runner_until_weights_move():
    target = tiny("llama")
    one, two = GraphLM(target), GraphLM(target)
    runner = one._runner
    assert runner is not two._runner
    one.append(torch.tensor([5, 6, 7]), keep=3)
    del one
    three = GraphLM(target)
    assert three._runner is runner
    assert close(three.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))
    del three
    for weight in target.parameters():
        weight.data = weight.data * 1.5  # as after `model.to`: a recording would read old addresses
    ours = GraphLM(target)
    assert ours._runner is not runner
    assert close(ours.append(torch.tensor([1, 2]), keep=2).logits, laws(target, [1, 2]))


@architectures
def test_exchanged_modules_are_put_back(architecture):
    target = tiny(architecture, dtype=torch.float32)
    with lean(target):
        assert target.config._attn_implementation == NAME
        assert any("forward" in vars(module) for module in target.modules())
    assert target.config._attn_implementation == "sdpa"
    assert not any("forward" in vars(module) for module in target.modules())


def test_windows_run_as_eager(model):
    target, ids = model("mistral", sliding_window=4), [3, 1, 4, 1, 5, 9]
    ours = GraphLM(target)
    assert ours.reason == "MistralForCausalLM has layers without full attention (sliding)"
    assert close(ours.append(torch.tensor(ids), keep=6).logits, laws(target, ids))


def test_a_mask_frozen_in_a_recording_is_found(monkeypatch, recorded):
    masks = {
        "cannot be recorded": lambda own, at: own._columns <= int(at[0]) + own._steps[:, None],
        "are off by": lambda own, at: own._columns <= torch.tensor(at.tolist())[:, None],
    }
    for reason, mask in masks.items():
        monkeypatch.setattr(static.StaticPass, "_seen", mask)
        assert reason in str(GraphLM(tiny("llama")).reason)


def test_a_forward_that_fails_on_the_way_changes_no_token(recorded):
    target, draft, calls = tiny("gpt2"), tiny("gpt2", noise=0.1), []
    plain, forward = generate(EagerLM, target, draft), target.forward

    def fails(**given):
        calls.append(1)
        if len(calls) > 9 and bool(given["position_ids"].max() < 0):  # a read
            raise ValueError
        return forward(**given)

    target.forward = fails
    assert generate(GraphLM, target, draft) == plain
    assert "GPT2LMHeadModel cannot be recorded" in str(graphs.known(target).reason)
    assert graphs.known(draft).reason is None


@pytest.mark.gpu
@gpu
@architectures
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_on_cuda_a_round_waits_once_and_gives_the_tokens_of_eager(architecture, monkeypatch):
    target, draft = tiny(architecture).to("cuda"), tiny(architecture, noise=0.1).to("cuda")
    read, waits, mode = loop.read, [], torch.cuda.set_sync_debug_mode
    for _ in range(2):  # recordings, and libraries at their first call, wait
        assert generate(GraphLM, target, draft) == generate(EagerLM, target, draft)

    def reading(*given):
        mode("default")
        waits.append(read(*given))
        mode("error")
        return waits[-1]

    monkeypatch.setattr(loop, "read", reading)
    try:
        rounds = generate(GraphLM, target, draft)
    finally:
        mode("default")
    assert len(waits) == len(rounds)
    assert graphs.known(target).reason is graphs.known(draft).reason is None

"""Ctrl-C while layers are replayed: an interrupt, wherever in a pass it comes, and no error."""

import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import Tensor, nn

from spsbench.engines.replay.layer_replay import attach
from spsbench.engines.session.engine_config import Choice, remember
from spsbench.engines.session.session import FastLM, held
from tests.tiny_models import laws, tiny

LIBRARY = torch.library.Library("spsbench_tests", "DEF")
LIBRARY.define("knock(Tensor x) -> Tensor")
ARMED: list[int] = []


def knock(x: Tensor) -> Tensor:
    """Python inside the interpreter of a replay, as our own kernels are."""
    if ARMED:
        signal.raise_signal(ARMED.pop())
    return x.clone()


LIBRARY.impl("knock", knock, "CPU")


class Knocking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.spsbench_tests.knock(nn.functional.silu(x))


def test_an_interrupt_inside_a_replay_is_one() -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn = Knocking()
    tape = attach(model)
    remember(model, Choice(engine="fast"), tape)
    lm, text = FastLM(model), [1, 2, 3, 4]
    lm.append(torch.tensor(text), keep=0)
    for _ in range(4):  # traced and checked by then
        lm.append(torch.tensor([5]), keep=1)
        text.append(5)
    assert tape.refused is None
    before = signal.getsignal(signal.SIGINT)
    for _ in range(3):
        ARMED.append(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            lm.append(torch.tensor([6]), keep=1)
        assert signal.getsignal(signal.SIGINT) is before
        lm.commit(len(text))
        torch.testing.assert_close(
            lm.append(torch.tensor([7]), keep=1).logits, laws(model, [*text, 7])[-1:]
        )
        lm.commit(len(text))


def test_what_comes_meanwhile_goes_to_the_handler_afterwards() -> None:
    told: list[str] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append("handled"))
    try:
        with held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            told.append("done")
        assert told == ["done", "handled", "handled"]
        with pytest.raises(ZeroDivisionError), held():
            told.append(signal.raise_signal(signal.SIGINT) or 1 / 0)
        assert told[3:] == ["handled"]
        with held():  # a handler that is exchanged meanwhile stays
            mine = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler is not mine
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with held():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_holds_nothing() -> None:
    seen = []

    def work() -> None:
        with held():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


GENERATE_AGAIN_AND_AGAIN = """
import sys
from spsbench.methods.resolve import resolve
from spsbench.settings.cell_from_options import make_cell
from spsbench.engines import worth
from spsbench.engines.packing.layouts import layouts
from spsbench.benchmark.generation import Generation
from spsbench.models.cache import ModelCache
# Packed whatever is fastest here: the kernels are what runs in Python.
worth.best_layout = lambda alike, size: next(iter(layouts(alike[0].weight)), None)
cell = resolve(make_cell(target="nano", k=4, max_new_tokens=200, ignore_eos=True, dtype="auto"))
loaded = ModelCache(threads=1).load(cell)
for update in Generation(cell, loaded, [5, 6, 7]):  # layers are traced and checked by then
    pass
for turn in range(int(sys.argv[1])):
    try:
        print("go", flush=True)
        while True:
            for update in Generation(cell, loaded, [5, 6, 7]):
                pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_real_interrupts_at_any_moment() -> None:
    times, rng = 25, random.Random(0)
    program = [sys.executable, "-c", GENERATE_AGAIN_AND_AGAIN, str(times)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as child:
        seen = []
        while len(seen) < 2 * times and (line := child.stdout.readline()):
            seen.append(line)
            if line == "go\n":
                time.sleep(0.1 + rng.random() * 0.1)
                child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert seen == ["go\n", "interrupted\n"] * times

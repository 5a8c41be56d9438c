"""Ctrl-C while layers are replayed: an interrupt, wherever in a pass it comes, and no error."""

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from spsbench.hardware.signals import held


def test_what_comes_meanwhile_goes_to_the_handler_afterwards():
    told = []
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


def test_another_thread_holds_nothing():
    seen = []

    def work():
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
from spsbench.benchmark.generation import Generation
from spsbench.models.cache import ModelCache
from spsbench.settings.execution import Access
cell = resolve(make_cell(target="nano", k=4, max_new_tokens=200, ignore_eos=True, dtype="auto"))
loaded = ModelCache(Access(threads=1)).load(cell)
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
def test_real_interrupts_at_any_moment():
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

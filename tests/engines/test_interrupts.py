"""Ctrl-C while layers are replayed: an interrupt, wherever in a pass it comes, and no error."""

import random
import signal
import subprocess
import sys
import time

import pytest

GENERATE_AGAIN_AND_AGAIN = """
import sys
from spsbench.methods.resolve import resolve
from spsbench.settings.grid import make_request
from spsbench.generation import Generation
from spsbench.models.cache import ModelCache
from spsbench.settings.execution import Access
cell = resolve(make_request(target="nano", k=4, max_new_tokens=200, ignore_eos=True, dtype="auto"))
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

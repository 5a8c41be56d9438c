"""Workers or the driver killed at random times: what is left equals a run without kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.folders import byte_tokenizer, random_model, save
from tests.workers.compared import bare

MARK = "SPS_KILLS"  # a variable in the environment of a command and of all that it starts
PROMPTS, KILLS = 12, 3
HANGS, ENDS = 300.0, 60.0  # seconds: of a run without an end; until workers are gone
UNAVAILABLE = 69  # a worker was lost

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    place = tmp_path_factory.mktemp("kills")
    target = str(save(place / "target", random_model(), byte_tokenizer()))
    draft = str(save(place / "draft", random_model(noise=0.1), byte_tokenizer()))
    prompts = place / "prompts.jsonl"
    rows = ({"id": str(n), "prompt": f"one two three {n} one two"} for n in range(PROMPTS))
    prompts.write_text("\n".join(map(json.dumps, rows)))
    words = ["bench", f"jsonl:path={prompts}", "--target", target, "--draft", draft]
    words += ["--engine", "eager", "-k", "2", "--samples", "2", "--max-new-tokens", "12"]
    return [*words, "--warmup", "0", "--threads", "1"]


def start(words, folder, on):
    """Begin or resume a run; return its process and the mark of all that it starts."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "spsbench", *words, "--on", on, "--out", str(folder)]
    command += ["--resume"] if folder.exists() else []
    quiet = subprocess.DEVNULL
    env = os.environ | {MARK: mark}
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=env), mark


def workers(mark):
    """Return the processes that work under a command."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            forked = b"--multiprocessing-fork" in (process / "cmdline").read_bytes()
            if forked and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                pids.append(int(process.name))
    return pids


def wait_until(condition, seconds):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_a_run_whose_processes_are_killed_resumes_to_the_same_records(victim, words, tmp_path):
    alone, _ = start(words, tmp_path / "alone", "here")
    assert alone.wait(HANGS) == 0
    draw, kills, folder = random.Random(0), 0, tmp_path / "killed"
    code = None
    while code != 0:
        process, mark = start(words, folder, "processes:2")
        until = time.monotonic() + draw.uniform(3, 17)
        while process.poll() is None and kills < KILLS:
            pids = [process.pid] if victim == "driver" else workers(mark)
            if time.monotonic() > until and pids:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    kills += 1
                until = time.monotonic() + draw.uniform(3, 17)
            time.sleep(0.02)
        code = process.wait(HANGS)
        assert code in (0, UNAVAILABLE, -signal.SIGKILL)
        assert wait_until(lambda mark=mark: not workers(mark), ENDS), "workers outlive their driver"
    assert bare(folder) == bare(tmp_path / "alone")

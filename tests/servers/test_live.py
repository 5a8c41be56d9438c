"""llama-cpp-python's server, plain and with prompt lookup: `pytest -m live tests/servers`.

`SPS_LIVE_PYTHON` names an interpreter with `llama-cpp-python[server]`, `SPS_LIVE_GGUF` a model.
"""

import os
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

from spsbench.servers import page
from spsbench.servers.check import examine
from spsbench.servers.http import Limits
from spsbench.servers.laws import Verdict
from spsbench.servers.plan import Plan

PYTHON, MODEL = os.environ.get("SPS_LIVE_PYTHON", ""), os.environ.get("SPS_LIVE_GGUF", "")
LOOKUP = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "3")
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not (PYTHON and MODEL), reason="SPS_LIVE_PYTHON and SPS_LIVE_GGUF"),
]


@contextmanager
def llama(*more):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "llama_cpp.server", "--model", MODEL, "--port", str(port)]
    command += ["--n_ctx", "96", "--n_threads", "1", "--logits_all", "true"]
    command += ["--interrupt_requests", "false", *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/v1/models").close()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def servers():
    with ExitStack() as stack:
        yield stack.enter_context(llama(*LOOKUP)), stack.enter_context(llama())


def test_prompt_lookup_holds_against_the_plain_server(servers):
    plan = Plan(
        servers[0],
        baseline=servers[1],
        parts=("law", "greedy"),
        length=32,
        bias=0.2,
        most=1000,
        limits=Limits(timeout=600),
    )
    found = examine(plan)
    print(page.sentence(found), *page.notes(found), sep="\n")
    assert found.verdict is Verdict.HELD

"""Real engines under `sps check`: `pytest -m live tests/extensions/check`.

What is not named is skipped.

| engine | named by |
|---|---|
| llama-cpp-python's server | `SPS_LIVE_PYTHON`, with `llama-cpp-python[server]`; `SPS_LIVE_GGUF` |
| OpenVINO GenAI | `SPS_LIVE_OPENVINO`, with openvino-genai; `SPS_LIVE_OPENVINO_TARGET`, `_DRAFT` |
| `transformers serve` | `SPS_LIVE_TRANSFORMERS`, with `transformers[serving]` |

The first of each is an interpreter; OpenVINO's models are the bundled pair as optimum-intel exports
it, in float32.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import spsbench
from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.extensions.check import page
from spsbench.extensions.check.check import examine
from spsbench.extensions.check.laws import Mode
from spsbench.extensions.check.library import load_weights
from spsbench.extensions.check.plan import Plan
from spsbench.serving.http import Limits

PACKAGE = Path(spsbench.__file__).parent
SERVE = PACKAGE.parent / "benchmarks" / "serve_openvino.py"
LOOKUP = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "3")
PATIENT = Limits(timeout=600)
pytestmark = [pytest.mark.live, pytest.mark.timeout(7200)]


def named(*variables):
    """The values of variables of the environment; without one of them, skip."""
    lacking = [name for name in variables if not os.environ.get(name)]
    if lacking:
        pytest.skip(f"not set: {', '.join(lacking)}")
    return [os.environ[name] for name in variables]


@contextmanager
def running(command):
    """Run a server, its port as the last argument, and give its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            try:
                urllib.request.urlopen(f"{url}/v1/models").close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def examined(url, weights=None, **more):
    plan = Plan(url, weights=weights and weights.name, limits=PATIENT, **more)
    found = examine(plan, weights)
    print(page.sentence(found), *page.notes(found), sep="\n")
    return found


def test_llamas_prompt_lookup_holds_against_the_plain_server():
    python, model = named("SPS_LIVE_PYTHON", "SPS_LIVE_GGUF")
    plain = [python, "-m", "llama_cpp.server", "--model", model]
    plain += ["--n_ctx", "96", "--n_threads", "1", "--logits_all", "true"]
    plain += ["--interrupt_requests", "false"]
    with running([*plain, *LOOKUP]) as url, running(plain) as base:
        found = examined(
            url, baseline=base, parts=("law", "greedy"), length=32, bias=0.2, most=1000
        )
    assert found.verdict is AuditVerdict.HELD


@contextmanager
def openvino(*more):
    python, target = named("SPS_LIVE_OPENVINO", "SPS_LIVE_OPENVINO_TARGET")
    hints = ["--hint", "INFERENCE_PRECISION_HINT=f32", "--hint", "KV_CACHE_PRECISION=f32"]
    with running([python, str(SERVE), target, *hints, *more]) as url:
        yield url


def test_openvinos_plain_pipeline_holds_by_the_weights():
    with openvino() as url:
        found = examined(url, load_weights("nano"), parts=("law", "greedy"), bias=0.1)
    assert found.law.mode is Mode.WEIGHTS
    assert found.verdict is AuditVerdict.HELD
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}


def test_openvinos_draft_model_gives_the_weights_greedy_text():
    (draft,) = named("SPS_LIVE_OPENVINO_DRAFT")
    with openvino("--draft", draft, "-k", "3") as url:
        found = examined(url, load_weights("nano"), parts=("greedy",))
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}


def test_transformers_prompt_lookup_gives_the_plain_servers_greedy_text(tmp_path):
    (python,) = named("SPS_LIVE_TRANSFORMERS")
    folders = [tmp_path / name for name in ("plain", "lookup")]
    for folder, more in zip(folders, ({}, {"prompt_lookup_num_tokens": 4}), strict=True):
        shutil.copytree(PACKAGE / "weights" / "nano", folder)
        path = folder / "generation_config.json"
        usual = {"do_sample": True, "top_k": 0, "top_p": 1.0}
        path.write_text(json.dumps(json.loads(path.read_text()) | usual | more))
    serve = [python, "-m", "transformers.cli.transformers", "serve"]
    options = ["--device", "cpu", "--dtype", "float32"]
    with ExitStack() as stack:
        base, url = (
            stack.enter_context(running([*serve, str(folder), *options])) for folder in folders
        )
        found = examined(
            url,
            model=str(folders[1]),
            baseline=base,
            baseline_model=str(folders[0]),
            parts=("greedy",),
            length=32,
        )
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}

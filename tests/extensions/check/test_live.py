"""Real engines under `sps check`: `pytest -m live tests/extensions/check`.

What is not named is skipped.

| engine | named by |
|---|---|
| llama-cpp-python's server | `SPS_LIVE_PYTHON`, with `llama-cpp-python[server]`; `SPS_LIVE_GGUF` |
| `transformers serve` | `SPS_LIVE_TRANSFORMERS`, with `transformers[serving]` |
| vLLM on CPU | `SPS_LIVE_VLLM`, the folder that `make live-vllm` fills |

The first of each but vLLM's is an interpreter.
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
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check import page
from spsbench.extensions.check.check import examine_server
from spsbench.extensions.check.options import PROMPTS
from spsbench.extensions.check.weights import load_weights
from spsbench.pair.export import export_drafter
from spsbench.pair.load import load
from tests.extensions.check.stubs import Plan

PACKAGE = Path(spsbench.__file__).parent
RECIPE = PACKAGE.parent / "recipes" / "vllm" / "serve.sh"
LOOKUP = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "3")
PORT = "{port}"
pytestmark = [pytest.mark.live, pytest.mark.timeout(7200)]


def named(*variables):
    """The values of variables of the environment; without one of them, skip."""
    lacking = [name for name in variables if not os.environ.get(name)]
    if lacking:
        pytest.skip(f"not set: {', '.join(lacking)}")
    return [os.environ[name] for name in variables]


@contextmanager
def running(command, **environment):
    """Run a server, its port in place of `PORT` or last, and give its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    at_end = [] if PORT in command else ["--port", PORT]
    process = subprocess.Popen(
        [str(port) if word == PORT else word for word in (*command, *at_end)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env | environment,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(3600):
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
    plan = Plan(url, weights=weights and weights.name, timeout=600.0, **more)
    found = examine_server(plan, weights)
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


LOOKUP_OF_VLLM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}


@contextmanager
def vllm(speculative=None, **environment):
    """vLLM over the bundled target, by the recipe; `MENDED` for its mended CPU shim."""
    named("SPS_LIVE_VLLM")
    words = [str(RECIPE), PORT, str(PACKAGE / "weights" / "nano")]
    words += [json.dumps(speculative)] if speculative else []
    with running(words, **environment) as url:
        yield url


def of_vllm(url, **more):
    return examined(url, load_weights("nano"), bias=0.15, length=32, **more)


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model", "eagle3", "medusa"])
def test_plain_and_mended_vllm_hold_by_the_weights(method, tmp_path):
    config = {"none": None, "ngram": LOOKUP_OF_VLLM}.get(method, {})
    if config == {}:
        draft = "nano-draft" if method == "draft_model" else f"nano-{method}"
        config = dict(
            export_drafter(draft, "vllm", tmp_path / draft, verifier="nano").speculative_config
        )
    with vllm(config, MENDED="1") as url:
        found = of_vllm(url, parts=("law", "greedy"))
    assert found.verdict is AuditVerdict.HELD
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}
    assert (found.acceptance is None) is (method == "none")


def test_released_vllm_is_biased_in_sampled_text_and_right_in_greedy():
    """vLLM #55005: where the shim is mended upstream, this fails, and its page wants a new row."""
    with vllm(LOOKUP_OF_VLLM) as url:
        found = of_vllm(url, parts=("law", "greedy"))
    assert found.law.verdict is AuditVerdict.BIAS
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}


@pytest.mark.parametrize("head", ["nano-eagle3", "nano-medusa"])
def test_vllm_accepts_as_many_tokens_of_a_head_as_we_do(head, tmp_path):
    """Greedy texts of both: the same tokens, and as many passes but for each text's last."""
    config = export_drafter(head, "vllm", tmp_path / head, verifier="nano").speculative_config
    arguments = {"draft": head, "k": 3, "engine": "eager", "dtype": "float32"}
    family = head.partition("-")[2]
    pair = load(target="nano", drafter=f"{family}:sampled=false", verifier="match", **arguments)
    with vllm(config) as url:
        found = examined(url, load_weights("nano"), parts=("greedy",), length=48)
    assert found.greedy.counts == {GreedyKind.IDENTICAL: 8}
    texts = [pair.generate(p, max_new_tokens=48, temperature=0) for p in PROMPTS[:8]]
    rounds = [r for text in texts for r in text.rounds if r.drafted]
    ours = 1 + sum(r.accepted for r in rounds) / len(rounds)
    theirs = 1 + found.acceptance.accepted / found.acceptance.rounds
    assert theirs == pytest.approx(ours, abs=0.15)

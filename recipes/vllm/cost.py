"""Cost of drafts by this package in vLLM 0.32 beside vLLM's own n-gram look-up, on a quiet machine.

cost.py FOLDER MODEL, by the Python that install.sh put into FOLDER: first the time of a call for
drafts without a server, then greedy texts of MODEL by three servers, each prompt asked in turn.
"""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
K, TOKENS, PORT = 3, 48, 8950
RULES = ("suffix", "ngram:n=3,min_n=1,match=first")
OWN = {"method": "ngram", "num_speculative_tokens": K}
OWN |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
CODE = "".join(f"def add_{{{i}}}(a, b):\n    return a + b\n\n" for i in range(3))
PROSE = (
    "Rivers change their beds when",
    "The old keeper of the lighthouse",
    "A theory of music begins with",
    "My grandmother never told us why",
    "In the year of the great storm",
    "To bake bread you first",
)
PROMPTS = {
    "repeats": [CODE.format(i, i + 1, i + 2) for i in range(len(PROSE))],
    "does not": list(PROSE),
}


def time_calls(vllm_config: Any, length: int, rows: int) -> dict[str, float]:
    """Return microseconds a row of a call for drafts, by drafter, for texts of `length` tokens."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    from spsbench.extensions.vllm.proposer import Proposer

    proposers: dict[str, Any] = {"vLLM n-gram": NgramProposer(vllm_config)}
    for rule in RULES:
        vllm_config.additional_config = {"spsbench": {"drafter": rule}}
        proposers[rule] = Proposer(vllm_config)
    words = np.random.default_rng(0).integers(0, 4000, (rows, 30, 12)).astype(np.int32)
    ids = np.zeros((rows, 4096), np.int32)
    order = np.random.default_rng(1).integers(0, 30, (rows, length // 12 + 8))
    for row in range(rows):
        text = words[row][order[row]].ravel()[: length + 60]
        ids[row, : len(text)] = text
    times: dict[str, list[float]] = {name: [] for name in proposers}
    for step in range(1, 60):
        sampled = [[int(ids[row, length + step - 1])] for row in range(rows)]
        lengths = np.full(rows, length + step, np.int32)
        for name, proposer in proposers.items():
            k = (K,) if name == "vLLM n-gram" else ()
            began = time.perf_counter()
            proposer.propose(*k, sampled, lengths, ids)
            times[name].append(time.perf_counter() - began)
    return {name: 1e6 * median(values[5:]) / rows for name, values in times.items()}


def ask(port: int, prompt: str) -> float:
    """Return the seconds per token of a greedy text."""
    body = {
        "model": "nano",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    began = time.perf_counter()
    urllib.request.urlopen(request, timeout=600).read()
    return (time.perf_counter() - began) / TOKENS


def interval(ratios: Sequence[float]) -> str:
    """Return the geometric mean of ratios with its bootstrap interval of 95 %."""
    logs, draw = np.log(ratios), random.Random(0)
    means = sorted(fmean(draw.choices(list(logs), k=len(logs))) for _ in range(2000))
    return f"{np.exp(fmean(logs)):.3f} [{np.exp(means[50]):.3f}, {np.exp(means[1949]):.3f}]"


def time_servers(folder: str, model: str) -> dict[str, Mapping[str, list[float]]]:
    """Return seconds per token by server and kind of text; a prompt is asked of all in turn."""
    about: dict[str, tuple[str, dict[str, str]]] = {
        "plain": ("", {}),
        "vLLM n-gram": (json.dumps(OWN), {}),
    }
    ours = {"method": "custom_class", "num_speculative_tokens": K}
    config = json.dumps(ours | {"model": "spsbench.extensions.vllm.proposer.Proposer"})
    about["suffix"] = (config, {"ADDITIONAL": json.dumps({"spsbench": {"drafter": "suffix"}})})
    with ExitStack() as stack:
        ports = {}
        for port, (name, (config, more)) in enumerate(about.items(), PORT):
            words = [str(HERE / "serve.sh"), str(port), model, *([config] if config else [])]
            env = os.environ | {"SPS_LIVE_VLLM": folder} | more
            server = subprocess.Popen(
                words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(server.wait)
            stack.callback(server.terminate)
            ports[name] = port
        for port in ports.values():
            while True:
                try:
                    ask(port, "Hello")
                    break
                except OSError:
                    time.sleep(1)
        times: dict[str, Any] = {name: {kind: [] for kind in PROMPTS} for name in ports}
        for kind, prompts in PROMPTS.items():
            for prompt in prompts:
                for name, port in sorted(ports.items(), key=lambda _: random.random()):
                    times[name][kind].append(ask(port, prompt))
        return times


def main() -> None:
    """Print both tables."""
    sizes = SimpleNamespace(num_speculative_tokens=K, prompt_lookup_min=1, prompt_lookup_max=3)
    model = SimpleNamespace(max_model_len=4096, get_vocab_size=lambda: 4096)
    config = SimpleNamespace(speculative_config=sizes, model_config=model)
    config.scheduler_config = SimpleNamespace(max_num_seqs=16)
    config.parallel_config = SimpleNamespace(tensor_parallel_size=1)
    for length in (100, 500, 2000):
        for rows in (1, 8):
            shown = {name: f"{us:.1f}" for name, us in time_calls(config, length, rows).items()}
            print(f"text of {length}, {rows} rows: microseconds a row and call", shown, flush=True)
    times = time_servers(sys.argv[1], sys.argv[2])
    for kind in PROMPTS:
        for name, by_kind in times.items():
            for base in ("vLLM n-gram", "plain"):
                pairs = zip(times[base][kind], by_kind[kind], strict=True)
                ratio = interval([theirs / own for theirs, own in pairs])
                print(f"text that {kind}: {name}, tokens/s over {base}: {ratio}", flush=True)


if __name__ == "__main__":
    main()

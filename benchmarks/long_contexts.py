"""What long contexts cost: attention by number of keys, and a long prompt chunk by chunk.

Attention: our kernel beside transformers' `sdpa`, 1 and 5 new tokens, in turns. Prompt: random
layers, with and without a sliding window; what each chunk of 512 tokens takes, and the most memory
over what weights and cache take. Processor time of one thread, medians: other work has little say.

    .venv/bin/python benchmarks/long_contexts.py

prints rows, and writes them to results/long-contexts.json.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from spsbench.engines.eager import PREFILL_CHUNK
from spsbench.engines.fast import Fast
from spsbench.engines.replay.attention import kernel_attend

OUT = Path(__file__).parents[1] / "results" / "long-contexts.json"
KEYS, ROWS, TURNS = (1024, 8192, 32768), (1, 5), 7
HEADS, SHARED, WIDTH = 32, 8, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "attention": [one for name in DTYPES for one in attention(name)],
        "prompt": [
            prompt(window, flags.tokens, flags.layers, name)
            for name in DTYPES
            for window in (None, 1024)
        ],
    }
    flags.out.write_text(json.dumps(found, indent=1) + "\n")


def attention(dtype: str) -> list[dict[str, Any]]:
    """Rows of one kind of number."""
    rows = []
    module = SimpleNamespace(num_key_value_groups=HEADS // SHARED, is_causal=True, training=False)
    for n in KEYS:
        key, value = torch.randn(2, 1, SHARED, n, WIDTH).to(DTYPES[dtype])
        for m in ROWS:
            query = torch.randn(1, HEADS, m, WIDTH).to(key.dtype)
            mask = None if m == 1 else torch.zeros(1, 1, m, n, dtype=key.dtype)

            def ours(given: Any = (query, key, value, mask)) -> None:
                kernel_attend(*given, None, WIDTH**-0.5, 0.0)

            def theirs(given: Any = (query, key, value, mask)) -> None:
                sdpa_attention_forward(module, *given, scaling=WIDTH**-0.5)

            own, stock = in_turns(ours, theirs)
            rows.append({
                "dtype": dtype, "keys": n, "rows": m, "ms": 1e3 * own,
                "ns_per_key": 1e9 * own / n, "of_sdpa": own / stock,
            })  # fmt: skip
            print("attention", rows[-1], flush=True)
    return rows


def in_turns(*ways: Callable[[], None]) -> list[float]:
    """Median seconds of each; the first turn does not count."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(TURNS + 1):
        for way, taken in zip(ways, times, strict=True):
            start = time.thread_time()
            way()
            taken.append(time.thread_time() - start)
    return [median(taken[1:]) for taken in times]


@torch.inference_mode()
def prompt(window: int | None, tokens: int, layers: int, dtype: str) -> dict[str, Any]:
    """Chunks of a prompt through a few layers, and steps after it."""
    lm = Fast().session(model(window, tokens, layers, DTYPES[dtype]))
    ids = torch.arange(tokens) % 1000
    lm.append(ids[:PREFILL_CHUNK], keep=0)
    lm.commit(0)
    gc.collect()
    forget_peak()
    before, chunks = resident(), []
    for start in range(0, tokens - 8, PREFILL_CHUNK):
        began = time.thread_time()
        lm.append(ids[start : min(start + PREFILL_CHUNK, tokens - 8)], keep=0)
        chunks.append(time.thread_time() - began)
    step = []
    for _ in range(TURNS):
        began = time.thread_time()
        lm.append(ids[:1], keep=1)
        step.append(time.thread_time() - began)
        lm.commit(tokens - 8)
    most = resident(most=True)
    cache = tokens * lm.token_bytes  # type: ignore[attr-defined]
    row = {
        "dtype": dtype, "window": window, "tokens": tokens, "layers": layers,
        "chunk_s": [round(seconds, 3) for seconds in chunks], "step_ms": 1e3 * median(step),
        "cache_bytes": cache, "peak_bytes": most - before,
    }  # fmt: skip
    print("prompt", row, flush=True)
    return row


def model(window: int | None, tokens: int, layers: int, dtype: torch.dtype) -> Any:
    """Random layers, prepared."""
    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": tokens,
    }  # fmt: skip
    config = LlamaConfig(**sizes) if window is None else MistralConfig(**sizes)
    if window is not None:
        config.sliding_window = window
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    Fast().prepare(made, threads=1)
    return made


def resident(most: bool = False) -> int:
    """Resident bytes of this process now, or the most of them since `forget_peak`."""
    name = "VmHWM:" if most else "VmRSS:"
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def forget_peak() -> None:
    """From here on the most is counted anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    main()

"""What a GPU has to decide about the engine `static`: `python recipes/gpu.py > gpu.jsonl`.

Each line is one answer: products of few rows, ways to share keys, passes of both engines and of a
compiler, rounds. Random weights in Llama 3's shapes (8 B and 1 B, bfloat16) are
drawn on the device; 40 GB are enough. A part that fails says so, and the others go on. Times are
medians. `--device cpu --small` tries the script itself.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import spsbench
from spsbench.engines.eager import EagerLM
from spsbench.engines.static import Runner, StaticLM, idle_runners

LLAMA = {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192}
LLAMA |= {"num_attention_heads": 32, "num_key_value_heads": 8}
SHAPES = {
    "target": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "draft": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 12000}
PAST, PROMPT = 300, list(range(7, 71))  # tokens before a timed pass; a prompt
TIMES = 20

Answers = Iterator[dict[str, Any]]


def milliseconds(work: Callable[[], Any], device: torch.device, *, waits: bool = True) -> float:
    """Return the median time of `work`; without `waits` that of the host, which only starts it."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    spans = []
    for _ in range(TIMES):
        wait()
        began = time.perf_counter()
        work()
        if waits:
            wait()
        spans.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(spans[3:]), 4)


def recorded(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Return the time of `work` as a graph."""
    runner = Runner(device)
    return milliseconds(partial(runner.replay, "", lambda: [work()]), device)


def products(device: torch.device, load: Callable[..., Any]) -> Answers:
    """Yield GB/s of products of few rows by weights."""
    for dtype in torch.bfloat16, torch.float32:
        weight = torch.randn(14336, 4096, device=device, dtype=dtype)
        for m in 1, 2, 5, 9:
            x = torch.randn(m, 4096, device=device, dtype=dtype)
            ms = recorded(partial(linear, x, weight), device)
            yield {"dtype": str(dtype), "m": m, "gb_per_s": round(weight.nbytes / ms / 1e6)}


def attention(device: torch.device, load: Callable[..., Any]) -> Answers:
    """Yield ms of attention of 32 heads over 8, by the way in which they share keys."""
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    for rows in 256, 512, 2048:
        for m in 1, 5:
            q, k, mask = random(1, 32, m, 128), random(1, 8, rows, 128), random(1, 1, m, rows)
            wide, packed = k.repeat_interleave(4, 1), q.reshape(1, 8, 4 * m, 128)
            ways = {
                "repeating": partial(k.repeat_interleave, 4, 1),
                "repeated before": partial(scaled_dot_product_attention, q, wide, wide, mask),
                "shared": partial(scaled_dot_product_attention, q, k, k, mask, enable_gqa=True),
                "heads as rows": partial(
                    scaled_dot_product_attention, packed, k, k, mask.repeat(1, 1, 4, 1)
                ),
            }
            for way, work in ways.items():
                yield {"way": way, "rows": rows, "m": m, "ms": recorded(work, device)}


def passes(device: torch.device, load: Callable[..., Any]) -> Answers:
    """Yield ms of a pass by each engine, and by `static` over compiled code; and of its start."""
    pair = load(engine="static", draft_engine="static")
    for name, model in ("target", pair.loaded.target), ("draft", pair.loaded.draft):
        for how in "eager", "static", "compiled":
            if how == "compiled":
                idle_runners(model, ()).clear()
                model.forward = torch.compile(model.forward, dynamic=False)
            lm = (EagerLM if how == "eager" else StaticLM)(model)
            lm.append(torch.arange(PAST), keep=0)
            for m in 1, 5:

                def work(lm: Any = lm, m: int = m) -> None:
                    lm.append(torch.arange(m), keep=m)
                    lm.commit(PAST)

                ms, host = (milliseconds(work, device, waits=waits) for waits in (True, False))
                yield {"model": name, "session": how, "m": m, "ms": ms, "host_ms": host}
            del lm


def rounds(device: torch.device, load: Callable[..., Any]) -> Answers:
    """Yield ms of rounds and tokens by engine; how many are accepted is given, for timing."""
    for engine in "eager", "static":
        pair = load(engine=engine, draft_engine=engine, verifier="synthetic:alpha=0.8")
        for k in 0, 2, 4, 8:
            pair.generate(PROMPT, k=k, max_new_tokens=24)
            played = pair.generate(PROMPT, k=k, max_new_tokens=96).rounds[2:-2]
            seconds = sum(x.seconds for x in played)
            tokens, drafting = sum(x.emitted for x in played), sum(x.draft_seconds for x in played)
            figures = {"ms_a_round": seconds / len(played), "ms_a_token": seconds / tokens}
            figures["draft_ms"] = drafting / len(played)
            in_ms = {name: round(1e3 * x, 3) for name, x in figures.items()}
            yield {"engine": engine, "k": k, **in_ms}


PARTS = (products, attention, passes, rounds)


def main() -> None:
    """Answer every question, or those of `--only`."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--only", default="", help="parts, joined by commas")
    chosen = flags.parse_args()
    device = torch.device(chosen.device)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    print(json.dumps({"card": card, "torch": torch.__version__}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            path = Path(folder, name)
            path.mkdir()
            fields = {**LLAMA, **shape, **(SMALL if chosen.small else {})}
            (path / "config.json").write_text(json.dumps(fields))
        how: dict[str, Any] = {name: str(Path(folder, name)) for name in SHAPES}
        how |= {"weights": "random", "dtype": "bfloat16", "device": chosen.device, "offline": True}
        load = partial(spsbench.load, **how, ignore_eos=True)
        for part in PARTS:
            if chosen.only and part.__name__ not in chosen.only.split(","):
                continue
            try:
                with torch.inference_mode():
                    for answer in part(device, load):
                        print(json.dumps({"part": part.__name__, **answer}), flush=True)
            except Exception as error:  # the other parts have answers too
                failed = f"{type(error).__name__}: {error}"[:400]
                print(json.dumps({"part": part.__name__, "failed": failed}), flush=True)


if __name__ == "__main__":
    main()

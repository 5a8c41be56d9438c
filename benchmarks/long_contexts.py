"""Where a draft over a part of the target's cache pays: predicted, and measured.

    .venv/bin/python benchmarks/long_contexts.py --predict                  # no pass is run
    .venv/bin/python benchmarks/long_contexts.py                            # all, half an hour
    .venv/bin/python benchmarks/long_contexts.py --contexts 8192 --batches 8 --methods window=256
    .venv/bin/python benchmarks/long_contexts.py --drafts                   # of `sps train draft`

Random weights in a real shape, in bfloat16, over caches filled with random rows; set acceptance. A
pass over n cached tokens reads W bytes of weights and n kv bytes for each of B texts, so caches
weigh as much as weights at S* = W / (B kv) tokens, from which a draft over a window pays (MagicDec,
arXiv 2408.11049). Passes take turns, and the least times are compared. Writes
results/long_contexts.json and .md.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from pairs.random_pairs import SHAPES
from spsbench.engines.session.cache import token_bytes
from spsbench.engines.session.partial_cache import partial_session
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.training.students.draft import cut, pruned, windowed
from spsbench.loop.batch import Fed
from spsbench.loop.drafter_context import CachePart

RESULTS = Path(__file__).parent / "results"
CONTEXTS, BATCHES = (1024, 2048, 4096, 8192, 16384), (1, 2, 4, 8)
METHODS = {  # of `self:`, and the part of the cache that its draft reads
    "window=256": CachePart(256, 4),
}
GROUP = 64  # tokens that are copied at a time


def shape_of(name: str, room: int) -> PreTrainedModel:
    """Return a model of random weights whose context holds `room` tokens."""
    made, sizes, _ = SHAPES[name]
    torch.manual_seed(0)
    config = made(**{**sizes, "max_position_embeddings": room})
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def gain(k: int, acceptance: float, plain: float, draft: float, verify: float) -> float:
    """Return the speed-up over plain decoding, from costs in one unit."""
    tokens = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    return tokens * plain / (k * draft + verify)


def predicted(
    model: PreTrainedModel, method: str, batch: int, context: int, k: int, acceptance: float
) -> dict[str, Any]:
    """Return S* and the speed-up where memory alone costs time."""
    weights = sum(weight.nbytes for weight in model.parameters())  # tied ones once
    row = batch * token_bytes(model)
    whole, draft = weights + context * row, weights + min(context, METHODS[method].rows) * row
    return {
        "draft by": f"self:{method}",
        "batch": batch,
        "context": context,
        "K": k,
        "S*": round(weights / row),
        "predicted": round(gain(k, acceptance, whole, draft, whole), 2),
    }


def filled(model: PreTrainedModel, context: int, spare: int) -> Any:
    """Return a session of `fast` over `context` random rows."""
    lm: Any = Fast().session(model)
    lm.append(torch.arange(2), keep=0)
    for layer in lm._cache.layers:
        layer.widen(context + spare)
        layer.keys.normal_()
        layer.values.normal_()
        layer.keep(context)
    lm._length = context
    return lm


def one_pass(lms: Sequence[Any], rows: int, context: int) -> None:
    """Make one pass of all sessions, and take its rows back."""
    tokens = torch.arange(rows)
    every = [Fed(lm, tokens, rows, None) for lm in lms]
    if len(lms) == 1:
        lms[0].append(tokens, rows)
    else:
        if any(lm.shares(fed) is None for lm, fed in zip(lms, every, strict=True)):
            raise RuntimeError("sessions of this model do not share passes")
        lms[0].together(every)
    for lm in lms:
        lm.commit(context)


def least(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Return the least milliseconds of each call, made in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 3):  # layers are captured and compared first
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn >= 3:
                found[name].append(1e3 * (time.perf_counter() - began))
    return {name: min(each) for name, each in found.items()}


def measured(
    model: PreTrainedModel, batch: int, context: int, flags: Any
) -> dict[tuple[str, int], dict[str, float]]:
    """Return least milliseconds of a round's parts, and the speed-up, by method and K."""
    targets = [filled(model, context, max(flags.k) + 1) for _ in range(batch)]
    calls: dict[str, Callable[[], None]] = {"plain": partial(one_pass, targets, 1, context)}
    calls |= {f"verify {k}": partial(one_pass, targets, k + 1, context) for k in flags.k}

    def copy(drafts: Sequence[Any]) -> None:
        for lm, target in zip(drafts, targets, strict=True):
            lm._cache.take(target._cache, context - GROUP, context)

    for name in flags.methods:
        drafts: list[Any] = [
            partial_session(
                model, lambda: Fast().session(model), METHODS[name], partial(next, repeat(lm))
            )
            for lm in targets
        ]
        for lm in drafts:
            lm.commit(context)
        calls[f"draft {name}"] = partial(one_pass, drafts, 1, context)
        calls[f"copy {name}"] = partial(copy, drafts)
    times, found = least(calls, flags.repeats), {}
    for name, k in product(flags.methods, flags.k):
        tokens = gain(k, flags.acceptance, 1, 0, 1)
        plain, verify = times["plain"], times[f"verify {k}"]
        draft, copied = times[f"draft {name}"], times[f"copy {name}"] * tokens / GROUP
        speed = gain(k, flags.acceptance, plain, draft, verify + copied)
        parts = {"plain": plain, "draft": draft, "verify": verify, "copy": copied}
        rounded = {f"{part}, ms": round(value, 2) for part, value in parts.items()}
        found[name, k] = {**rounded, "measured": round(speed, 2)}
    return found


def draft_models(model: PreTrainedModel, window: int) -> dict[str, PreTrainedModel]:
    """Return the drafts with which `sps train draft` begins, whole, in a window, and pruned."""
    whole = cut(model, None)
    made = {"whole": whole, "window": windowed(whole, window), "pruned": pruned(whole)}
    made["window, pruned"] = windowed(made["pruned"], window)
    return {name: each.to(torch.bfloat16) for name, each in made.items()}


def drafted(models: dict[str, PreTrainedModel], context: int, repeats: int) -> dict[str, Any]:
    """Return least milliseconds of a drafted token after `context`, and bytes of the caches."""
    lms: dict[str, Any] = {}
    for name, model in models.items():
        slides = getattr(model.config, "sliding_window", None)
        lm = lms[name] = filled(model, context, 1) if not slides else Fast().session(model)
        if slides:
            lm.append(torch.arange(context) % 1000, keep=0)
    calls: dict[str, Callable[[], None]] = {
        name: partial(one_pass, [lm], 1, context) for name, lm in lms.items()
    }
    times = least(calls, repeats)
    row: dict[str, Any] = {"context": context}
    row |= {f"{name}, ms": round(times[name], 3) for name in lms}
    held = {name: lm.token_bytes * lm._cache.layers[0].capacity / 2**20 for name, lm in lms.items()}
    return row | {f"{name}, MiB": round(size, 2) for name, size in held.items()}


def write(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    """Write rows as JSON and as a table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[key]) for key in head] for row in rows)]
    page = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (out / f"{name}.md").write_text(page)


def main() -> None:
    """Parse, run, write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    options.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    options.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    options.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options.add_argument("--window", type=int, default=256, help="of --drafts")
    options.add_argument("--k", type=int, nargs="+", default=(1, 2, 3))
    options.add_argument("--acceptance", type=float, default=0.8)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--predict", action="store_true")
    options.add_argument("--drafts", action="store_true")
    options.add_argument("--out", type=Path, default=RESULTS)
    flags = options.parse_args()
    model = shape_of(flags.shape, max(flags.contexts) + max(flags.k) + 1)
    rows = []
    if flags.drafts:
        models = draft_models(model, flags.window)
        for each in models.values():
            Fast().prepare(each, threads=torch.get_num_threads())
        for context in flags.contexts:
            with torch.inference_mode():
                rows.append(drafted(models, context, flags.repeats))
            print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        write("draft_windows", rows, flags.out)
        return
    if not flags.predict:
        Fast().prepare(model, threads=torch.get_num_threads())
    for batch, context in product(flags.batches, flags.contexts):
        with torch.inference_mode():
            times = {} if flags.predict else measured(model, batch, context, flags)
        for method, k in product(flags.methods, flags.k):
            row = predicted(model, method, batch, context, k, flags.acceptance)
            rows.append(row | times.get((method, k), {}))
            print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if flags.predict:
        return
    write("long_contexts", rows, flags.out)


if __name__ == "__main__":
    main()

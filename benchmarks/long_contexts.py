"""Where a draft over a window of the target's cache pays: predicted by bytes, and measured.

    .venv/bin/python benchmarks/long_contexts.py --predict                  # no pass is run
    .venv/bin/python benchmarks/long_contexts.py --contexts 1024 8192 --batches 1 8
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
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from pairs.random_pairs import SHAPES
from spsbench.engines.fast import Fast
from spsbench.engines.session.cache import token_bytes
from spsbench.engines.session.partial_cache import partial_session
from spsbench.loop.batch import Fed
from spsbench.loop.drafter_context import CachePart
from spsbench.training.students.draft import cut, pruned, windowed

RESULTS = Path(__file__).parent / "results"
CONTEXTS, BATCHES = (1024, 2048, 4096, 8192), (1, 8)


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
    model: PreTrainedModel, batch: int, context: int, k: int, flags: Any
) -> dict[str, Any]:
    """Return S* and the speed-up where memory alone costs time."""
    weights = sum(weight.nbytes for weight in model.parameters())  # tied ones once
    row = batch * token_bytes(model)
    whole, draft = weights + context * row, weights + (flags.window + flags.sinks) * row
    return {
        "batch": batch,
        "context": context,
        "K": k,
        "S*": round(weights / row),
        "predicted": round(gain(k, flags.acceptance, whole, draft, whole), 2),
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
    model: PreTrainedModel, batch: int, context: int, k: int, flags: Any
) -> dict[str, float]:
    """Return least milliseconds of a round's parts, and the speed-up that follows."""
    part = CachePart(flags.window, flags.sinks)
    targets = [filled(model, context, k + 1) for _ in range(batch)]
    drafts: list[Any] = [
        partial_session(model, lambda: Fast().session(model), part, lambda lm=lm: lm)  # type: ignore[misc]
        for lm in targets
    ]
    for lm in drafts:
        lm.commit(context)

    def copy() -> None:
        for lm, target in zip(drafts, targets, strict=True):
            lm._cache.take(target._cache, context - k - 1, context)

    found = least(
        {
            "plain": lambda: one_pass(targets, 1, context),
            "draft": lambda: one_pass(drafts, 1, context),
            "verify": lambda: one_pass(targets, k + 1, context),
            "copy": copy,
        },
        flags.repeats,
    )
    verify = found["verify"] + found["copy"]
    speed = gain(k, flags.acceptance, found["plain"], found["draft"], verify)
    rounded = {f"{name}, ms": round(value, 2) for name, value in found.items()}
    return {**rounded, "measured": round(speed, 2)}


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
    options.add_argument("--window", type=int, default=256)
    options.add_argument("--sinks", type=int, default=4)
    options.add_argument("--k", type=int, nargs="+", default=(1, 3))
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
    for case in product(flags.batches, flags.contexts, flags.k):
        row = predicted(model, *case, flags)
        with torch.inference_mode():
            row |= {} if flags.predict else measured(model, *case, flags)
        rows.append(row)
        print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if flags.predict:
        return
    write("long_contexts", rows, flags.out)


if __name__ == "__main__":
    main()

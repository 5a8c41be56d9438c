"""What a pass costs by weights, rows, batch, and shape of the draft.

    .venv/bin/python benchmarks/passes.py --targets smollm2 gpt2-large --rows 1 5
    .venv/bin/python benchmarks/passes.py --targets nano --weights checkpoint --rows 9 129 --trees
    .venv/bin/python benchmarks/passes.py --targets smollm2 --weights bfloat16 --batches 1 2 4 8

A target is a bundled or fetched model, a folder, or a named shape of random weights. All passes of
a target alternate, over the same cached tokens; `over one row` is the ratio to a pass of one row of
one text with the same weights, `over a chain` that of a tree to a chain of as many rows. Results
are kept by processor in results/passes.json and passes.md.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

import spsbench
from pairs.random_pairs import SHAPES
from spsbench.engines.quantization.codes import FORMATS
from spsbench.engines.quantization.layers import quantise
from spsbench.hardware.environment import usable_cores
from spsbench.loop.batch import Fed
from spsbench.loop.types import LM
from spsbench.plugins import make
from spsbench.spec import Spec
from timing import RESULTS, alternate, keep, milliseconds, ratio, seconds


class Pass(NamedTuple):
    """A kind of pass."""

    weights: str
    batch: int
    rows: int
    draft: str  # chain or tree


def sessions(
    target: str, dtype: str, weights: str, engine: str, count: int, context: int
) -> list[LM]:
    """Open sessions over a target, each with `context` tokens in its cache."""
    factory = make("engines", Spec(engine))
    if target in SHAPES:
        config, sizes, _ = SHAPES[target]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(**sizes), dtype=torch.bfloat16).eval()
        if weights in FORMATS:
            quantise(model, weights)
        factory.prepare(model)
    else:
        options: Any = {"weights": weights} if weights in FORMATS else {}
        pair = spsbench.load(target=target, dtype=dtype, engine=engine, k=0, **options)
        model = pair.loaded.target
    lms = [factory.session(model) for _ in range(count)]
    for number, lm in enumerate(lms):
        lm.append((torch.arange(context) + number) % lm.vocab_size, keep=0)
    return lms


def tree(rows: int) -> torch.Tensor:
    """Return the parents of a tree of random shape below the pending token."""
    draw = random.Random(rows)
    return torch.tensor([draw.randrange(-1, node) for node in range(rows - 1)])


def run_pass(lms: Sequence[Any], rows: int, parents: torch.Tensor | None, context: int) -> float:
    """Time a common pass of all sessions, which are left as they were."""
    tokens = torch.arange(rows)
    fed = [Fed(lm, tokens, rows, parents) for lm in lms]
    if len(lms) > 1 and lms[0].shares(fed[0]) is None:
        raise RuntimeError("passes that cannot be shared")
    run: Callable[[], Any] = partial(lms[0].append, tokens, rows, parents)
    spent = seconds(run if len(lms) == 1 else partial(lms[0].together, fed))
    for lm in lms:
        lm.commit(context)
    return spent


def measure(target: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each pass over a target."""
    calls = {}
    for weights in flags.weights:
        lms = sessions(
            target, flags.dtype, weights, flags.engine, max(flags.batches), flags.context
        )
        for batch in flags.batches:
            for rows in sorted({1, *flags.rows}):
                for draft in ("chain", "tree") if flags.trees and rows > 1 else ("chain",):
                    parents = tree(rows) if draft == "tree" else None
                    call = partial(run_pass, lms[:batch], rows, parents, flags.context)
                    calls[Pass(weights, batch, rows, draft)] = call
    times = alternate(calls, flags.repeats)
    results = []
    for name, spent in times.items():
        row = {"target": target, **name._asdict(), "ms": milliseconds(spent)}
        row["over one row"] = ratio(spent, times[Pass(name.weights, 1, 1, "chain")])
        if flags.trees:
            row["over a chain"] = ratio(spent, times[name._replace(draft="chain")])
        results.append(row)
    return results


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--targets", nargs="+", default=["smollm2"])
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--weights", nargs="+", default=["bfloat16", "int8", "int4"])
    options.add_argument("--engine", default="fast")
    options.add_argument("--rows", nargs="+", type=int, default=[1, 5])
    options.add_argument("--batches", nargs="+", type=int, default=[1])
    options.add_argument("--trees", action="store_true", help="trees beside chains")
    options.add_argument("--context", type=int, default=200, help="cached tokens")
    options.add_argument("--repeats", type=int, default=30)
    options.add_argument("--threads", type=int, default=usable_cores())
    flags = options.parse_args()
    torch.set_num_threads(flags.threads)
    with torch.inference_mode():
        rows = [row for target in flags.targets for row in measure(target, flags)]
    section = "trees" if flags.trees else "batches" if max(flags.batches) > 1 else "weights"
    keep(RESULTS / "passes", section, rows, threads=flags.threads)


if __name__ == "__main__":
    main()

"""Do costs foretell rounds? Rounds of other K, contexts and rules, beside what the table says.

A table of costs is measured, then rounds that are not in it, then a table again; the rounds are set
against the mean of both tables, so that a drift of the machine is halved.

    .venv/bin/python benchmarks/costs.py

writes results/costs.json. A ratio is measured over foretold, with the interval of its median.
"""

import argparse
import json
import platform
from pathlib import Path
from random import Random

import numpy as np

import spsbench
from spsbench.api.costs import measure_costs
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.surface import typical
from spsbench.planning.rounds import Rounds
from spsbench.settings.names import drafting
from spsbench.tasks.corpora import news

OUT = Path(__file__).parents[1] / "results" / "costs.json"
METHODS = ({}, {"verifier": "block"}, {"drafter": "ngram"})
KS, CONTEXTS = (3, 6, 12), (128, 640)
TURNS = 15


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--target", default="nano")
    options.add_argument("--draft")
    options.add_argument("--dtype")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    pair = spsbench.load(
        target=flags.target, draft=flags.draft, dtype=flags.dtype, threads=flags.threads
    )
    items = [item.document for item, _ in zip(news.items(0, "heldout"), range(40), strict=False)]
    text = pair.loaded.tokenizer.encode("\n\n".join(items))
    asked = {"prompt": text, "seconds": flags.seconds}
    before = measure_costs(pair, *METHODS, **asked)
    meters = {}
    for method in METHODS:
        cell, loaded = pair.configured(**method)
        for context in CONTEXTS:
            meters[cell, context] = Rounds(cell, loaded, text, context, KS, Random(1))
    for _ in range(TURNS + 1):  # the first does not count
        for meter in meters.values():
            meter.turn()
    after = measure_costs(pair, *METHODS, **asked)

    rows = []
    for (cell, _), meter in meters.items():
        name, rule = drafting(cell), str(cell.method.verifier)
        parts = meter.parts(range(1, TURNS + 1))  # [T, 4, K]
        for k, (drafted, _, _, seconds) in zip(KS, parts.transpose(2, 1, 0), strict=True):
            told = [
                np.mean(
                    [foretold(each, name, rule, k, n, meter.context) for each in (before, after)]
                )
                for n in drafted
            ]
            ratio = typical(seconds / np.array(told), before.busy or after.busy)
            rows.append({
                "drafter": name, "verifier": rule, "k": k, "context": meter.context,
                "ms": 1e3 * float(np.median(seconds)), "ratio": ratio._asdict(),
            })  # fmt: skip
            print(f"{name} {rule} K={k} after {meter.context}: {ratio}")
    found = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": flags.threads,
            "others": [before.others, after.others],
        },
        "setting": before.setting,
        "rounds": rows,
    }
    flags.out.write_text(json.dumps(found, indent=1) + "\n")


def foretold(costs: Costs, name: str, rule: str, k: int, drafted: float, context: float) -> float:
    """Seconds of a round."""
    return costs.round_seconds(name, k, context, drafted=drafted, verifier=rule).total.value


if __name__ == "__main__":
    main()

"""What quantised weights cost in quality: perplexity, and the distance of the laws.

Every format of `--weights` along held-out articles, teacher-forced and under the plain law: the
perplexity of the text, and the total variation to the model with its weights as trained. One less
that is the acceptance rate of `--draft self:FORMAT`.

    .venv/bin/python benchmarks/quantised.py --target nano --target smollm2

writes results/quantised.json. Intervals are 95 %, by the articles' means.
"""

import argparse
import json
import math
import platform
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import spsbench
from spsbench.benchmark.text_laws import TextTracer
from spsbench.settings.models import CHECKPOINT, QUANTISED
from spsbench.tasks.corpora import news

OUT = Path(__file__).parents[1] / "results" / "quantised.json"


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--target", action="append")
    options.add_argument("--articles", type=int, default=12)
    options.add_argument("--tokens", type=int, default=160)
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    found = {
        name: measured(name, flags.articles, flags.tokens) for name in flags.target or ["nano"]
    }
    told = {"machine": platform.processor(), "torch": torch.__version__, "models": found}
    flags.out.write_text(json.dumps(told, indent=1) + "\n")
    for name, rows in found.items():
        for weights, row in rows.items():
            print(f"{name} {weights}: {row}")


def measured(target: str, articles: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Format -> perplexity, and total variation with half its interval."""
    texts = [item.document for item in islice(news.items(0, "heldout"), articles)]
    rows, exact = {}, []
    for weights in (CHECKPOINT, *QUANTISED):
        pair = spsbench.load(target=target, k=0, weights=weights, engine="eager")
        cell, loaded = pair.configured(k=0)
        tracer = TextTracer(cell, loaded)
        losses, distances, count = 0.0, [], 0
        for number, text in enumerate(texts):
            ids = loaded.tokenizer.encode(text)[:tokens]
            q = torch.cat([each.q for each in tracer.laws(ids[:1], ids[1:])])
            losses -= float(q.gather(1, torch.tensor(ids[1:])[:, None]).log().sum())
            count += len(q)
            if weights == CHECKPOINT:
                exact.append(q)
            distances.append(float((q - exact[number]).abs().sum(1).mean()) / 2)
        half = 2.2 * stdev(distances) / math.sqrt(len(distances))
        rows[weights] = {
            "perplexity": round(math.exp(losses / count), 4),
            "tv": round(mean(distances), 5),
            "tv_half_interval": round(half, 5),
            "tokens": count,
        }
    return rows


if __name__ == "__main__":
    main()

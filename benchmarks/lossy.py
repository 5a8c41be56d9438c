"""What lossy rules gain and lose, compared with exact ones.

    .venv/bin/python benchmarks/lossy.py

Runs XSum-mini under ArS and under every rule with the bundled pair, interleaved (`spsbench.bench`),
scores ROUGE-2, and measures along texts of the target how far each rule's output distribution at a
drafted position is from the target's (the mean total variation of `output_probs(q, p)`, which the
tests hold to the enumerated one). Writes results/lossy-nano.json: block efficiency, which a busy
machine does not change, and both losses. pass@1 is left out: an 8 M model solves one only by luck.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from spsbench.benchmark.bench import bench
from spsbench.benchmark.target_probs import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.generation import Generation
from spsbench.loop.types import Scores
from spsbench.methods.resolve import resolve
from spsbench.models.tokenizers import encode_text
from spsbench.pair.load import load
from spsbench.plugins import make
from spsbench.settings.experiment import task_spec
from spsbench.settings.grid import Sweep, make_request
from spsbench.settings.method import Drafting
from spsbench.spec import Spec
from timing import table

OUT = Path(__file__).parents[1] / "results" / "lossy-nano"
EXACT = ("sps", "block")
LOSSY = (
    *(f"lenient:l={x}" for x in (0.7, 0.4, 0.1)),
    *(f"ensemble:w={x}" for x in (0.2, 0.5, 0.8)),
    *(f"typical:epsilon={x}" for x in (0.3, 0.09, 0.03)),
    *(f"topk:n={n}" for n in (1, 3, 10)),
)
TASK = "xsum:data=mini"
FIGURES = ("total variation", "kept")
COLUMNS = ("block_efficiency", "quality.rouge2")


def slot_figures(prompts: int, tokens: int) -> dict[str, dict[str, float]]:
    """Return each rule's total variation to the target and its acceptance, means over positions."""
    cell = resolve(make_request(max_new_tokens=tokens))
    pair = load()
    loaded = pair.model_cache.load(cell)
    target, draft = (
        TextTracer(cell.auto_regressive, loaded),
        DraftTracer(Drafting.of(cell), [cell], loaded, {}),
    )
    task = make("tasks", task_spec(Sweep(task=TASK)))
    rules = {name: make("verifiers", Spec.parse(name)) for name in LOSSY}
    sums = {name: dict.fromkeys(FIGURES, 0.0) for name in ("sps", *LOSSY)}
    count = 0
    for number, sample in enumerate(islice(task.samples(lambda sample: True), prompts)):
        prompt = encode_text(loaded.tokenizer, sample.prompt)[-300:]
        generation = Generation(cell.auto_regressive, loaded, prompt, sample=str(number))
        for _ in generation:
            pass
        text = [*prompt, *generation.record.tokens]
        steps = list(target.rows(prompt, generation.record.tokens))
        draft.drafter.begin(prompt, Scores(torch.empty(0), {}))
        q = torch.cat([step.q for step in steps])
        drafted = draft.drafter.along(text, len(prompt), draft.warp)
        if drafted is None:
            raise TypeError("expected a draft that is sampled")
        p = drafted.probs
        sums["sps"]["kept"] += float(torch.minimum(p, q).sum())
        for name, rule in rules.items():
            sums[name]["total variation"] += float((rule.output_probs(q, p) - q).abs().sum()) / 2
            sums[name]["kept"] += float(rule.kept(q, p).sum())
        count += len(q)
    return {
        rule: {name: total / count for name, total in totals.items()}
        for rule, totals in sums.items()
    }


def figures(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row a rule: block efficiency, ROUGE-2, total variation, acceptance."""
    run = bench(
        TASK,
        verifier=[*EXACT, *LOSSY],
        limit=flags.limit,
        max_new_tokens=flags.tokens,
        out=flags.run,
        resume=flags.resume,
    )
    by_rule = slot_figures(flags.texts, flags.tokens)
    rows = []
    for summary, values in zip(run.summary, run.rows(), strict=True):
        rule = "ArS" if summary.cell.k == 0 else str(summary.cell.verifier)
        measured = {name: x for name, x in values.items() if name.startswith(COLUMNS)}
        rows.append({"rule": rule, **by_rule.get(rule, {}), **measured})
    return rows


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=40, help="articles")
    parser.add_argument("--texts", type=int, default=8, help="for total variation")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--run", type=Path, default=Path("work/lossy-run"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    flags = parser.parse_args()
    rows = figures(flags)
    setting = {"task": TASK, "limit": flags.limit, "tokens": flags.tokens, "k": 4}
    values = {"setting": setting, "rows": rows}
    flags.out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    print(
        table(
            [
                {n: round(x, 4) if isinstance(x, float) else x for n, x in row.items()}
                for row in rows
            ]
        )
    )


if __name__ == "__main__":
    main()

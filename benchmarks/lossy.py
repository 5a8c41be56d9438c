"""What lossy rules gain and what they lose, beside the exact ones, on one page.

    .venv/bin/python benchmarks/lossy.py

Runs XSum-mini under ArS and under every rule with the bundled pair, interleaved (`spsbench.bench`),
scores ROUGE-2, and measures along texts of the target how far each rule's law of a drafted slot is
from the target's (the mean total variation of `law(q, p)`, which the tests hold to the enumerated
one). Writes results/lossy-nano.json: block efficiency, which no busy machine moves, and both
losses. pass@1 has no place here: an 8 M model solves no problem but by luck.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from spsbench.benchmark.bench import bench
from spsbench.benchmark.generation import Generation
from spsbench.benchmark.target_laws import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.methods.resolve import resolve
from spsbench.models.tokenizers import encode
from spsbench.pair.load import load
from spsbench.plugins import make
from spsbench.settings.experiment import task_spec
from spsbench.settings.grid import Sweep, make_cell
from spsbench.spec import Spec

OUT = Path(__file__).parents[1] / "results" / "lossy-nano"
EXACT = ("sps", "block")
LOSSY = (
    *(f"lenient:l={x}" for x in (0.7, 0.4, 0.1)),
    *(f"ensemble:w={x}" for x in (0.2, 0.5, 0.8)),
    *(f"typical:epsilon={x}" for x in (0.3, 0.09, 0.03)),
    *(f"topk:n={n}" for n in (1, 3, 10)),
)
TASK = "xsum:data=mini"
ALONG = ("total variation", "kept")
FIGURE = "block_efficiency"
QUALITY = "quality.rouge2"


def along_texts(prompts: int, tokens: int) -> dict[str, dict[str, float]]:
    """Means over positions of texts: a rule's distance from the target, and what it keeps."""
    cell = resolve(make_cell(max_new_tokens=tokens))
    plain = resolve(cell.auto_regressive)
    pair = load()
    loaded = pair.model_cache.load(cell)
    target, draft = TextTracer(plain, loaded), DraftTracer("draft", [cell], loaded, {})
    task = make("tasks", task_spec(Sweep(task=TASK)))
    sums, count = {name: dict.fromkeys(ALONG, 0.0) for name in ("sps", *LOSSY)}, 0
    for number, sample in enumerate(task.samples(lambda text: True)):
        if number == prompts:
            break
        prompt = encode(loaded.tokenizer, sample.prompt)[-300:]
        made = Generation(plain, loaded, prompt, sample=str(number))
        for _ in made:
            pass
        text = [*prompt, *made.record.tokens]
        laws = list(target.laws(prompt, made.record.tokens))
        draft.drafter.begin(prompt, laws[0].logits[:0])
        q = torch.cat([each.q for each in laws])
        found = draft.drafter.along(text, len(prompt), draft.warp)
        if found is None:
            raise TypeError("expected a draft that is sampled")
        p = found.laws
        sums["sps"]["kept"] += float(torch.minimum(p, q).sum())
        for name in LOSSY:
            rule = make("verifiers", Spec.parse(name))
            sums[name]["total variation"] += float((rule.law(q, p) - q).abs().sum()) / 2
            sums[name]["kept"] += float(rule.kept(q, p).sum())
        count += len(q)
    return {name: {n: s / count for n, s in each.items()} for name, each in sums.items()}


def figures(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a rule: block efficiency, speed-up, ROUGE-2, total variation."""
    run = bench(
        TASK,
        verifier=[*EXACT, *LOSSY],
        limit=flags.limit,
        max_new_tokens=flags.tokens,
        out=flags.run,
        resume=flags.resume,
    )
    along = along_texts(flags.texts, flags.tokens)
    rows = []
    for summary, values in zip(run.summary, run.rows(), strict=True):
        rule = "ArS" if summary.cell.k == 0 else str(summary.cell.verifier)
        shown = {n: v for n, v in values.items() if n.startswith((FIGURE, QUALITY))}
        rows.append({"rule": rule, **along.get(rule, {}), **shown})
    return rows


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--limit", type=int, default=40, help="articles")
    options.add_argument("--texts", type=int, default=8, help="for total variation")
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--run", type=Path, default=Path("results/lossy-run"))
    options.add_argument("--resume", action="store_true")
    options.add_argument("--out", type=Path, default=OUT)
    flags = options.parse_args()
    rows = figures(flags)
    setting = {"task": TASK, "limit": flags.limit, "tokens": flags.tokens, "k": 4}
    values = {"setting": setting, "rows": rows}
    flags.out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    for row in rows:
        shown = {n: round(v, 4) for n, v in row.items() if isinstance(v, float)}
        print(row["rule"], shown)


if __name__ == "__main__":
    main()

"""What lossy rules gain and what they lose, beside the exact ones, on one page.

    .venv/bin/python benchmarks/lossy.py

Runs XSum-mini under ArS and under every rule with the bundled pair, interleaved (`spsbench.bench`),
scores ROUGE-2, and measures along texts of the target how far each rule's law of a drafted slot is
from the target's (the mean total variation of `law(q, p)`, which the tests hold to the enumerated
one). Writes results/lossy-nano.json, .png and .svg: block efficiency, which no busy machine moves,
against both losses. pass@1 has no place here: an 8 M model solves no problem but by luck.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from spsbench.library.bench import bench
from spsbench.library.load import load
from spsbench.methods.resolve import resolve
from spsbench.models.loader import encode
from spsbench.plugins import make
from spsbench.runs.generation import Generation
from spsbench.runs.tracing import DraftTracer, TextTracer
from spsbench.settings.asked import make_cell
from spsbench.settings.experiment import task_spec
from spsbench.settings.sweep import Sweep
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
FIGURES = ("block_efficiency", "speedup")
QUALITY = "quality.rouge2"
DATELESS: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}}


def distances(prompts: int, tokens: int) -> dict[str, float]:
    """The mean total variation of each rule's law from the target's, over positions of texts."""
    cell = resolve(make_cell(max_new_tokens=tokens))
    plain = resolve(cell.auto_regressive)
    pair = load()
    loaded = pair.shelf.load(cell)
    target, draft = TextTracer(plain, loaded), DraftTracer("draft", [cell], loaded, {})
    task = make("tasks", task_spec(Sweep(task=TASK)))
    sums, count = dict.fromkeys(LOSSY, 0.0), 0
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
        for name in LOSSY:
            law = make("verifiers", Spec.parse(name)).law(q, found.laws)
            sums[name] += float((law - q).abs().sum(-1).sum()) / 2
        count += len(q)
    return {name: total / count for name, total in sums.items()}


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
    lost = distances(flags.texts, flags.tokens) | dict.fromkeys(EXACT, 0.0)
    rows = []
    for summary, values in zip(run.summary, run.rows(), strict=True):
        rule = "ArS" if summary.cell.k == 0 else str(summary.cell.method.verifier)
        told = {n: v for n, v in values.items() if n.startswith((*FIGURES, QUALITY))}
        rows.append({"rule": rule, "total variation": lost.get(rule, 0.0), **told})
    return rows


def plotted(rows: list[dict[str, Any]], out: Path) -> None:
    """Tokens a target pass against what is lost, a line for each rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    plain = next(row for row in rows if row["rule"] == "ArS")
    for place, name in zip(places, ("total variation", QUALITY), strict=True):
        for rule in ("sps", "block", "lenient", "ensemble", "typical", "topk"):
            own = [row for row in rows if row["rule"].partition(":")[0] == rule]
            lost = [row[name] for row in own]
            gained = [row["block_efficiency"] for row in own]
            place.plot(lost, gained, "o-" if len(own) > 1 else "ks", label=rule, markersize=4)
        place.set_xlabel("total variation a drafted slot" if name != QUALITY else "ROUGE-2")
        place.set_ylabel("tokens a target pass, K = 4")
    places[1].axvline(plain[QUALITY], color="0.6", linewidth=1)
    places[1].text(plain[QUALITY], places[1].get_ylim()[0], " ArS", color="0.4")
    places[0].legend(fontsize=8)
    for kind in ("png", "svg"):
        figure.savefig(out.with_suffix(f".{kind}"), dpi=150, metadata=DATELESS[kind])


def main() -> None:
    """Run, write and draw."""
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
    plotted(rows, flags.out)
    for row in rows:
        told = {n: round(v, 4) for n, v in row.items() if isinstance(v, float)}
        print(row["rule"], told)


if __name__ == "__main__":
    main()

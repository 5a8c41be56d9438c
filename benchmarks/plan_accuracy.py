"""How well a plan predicts tokens per round: measured on held-back prompts against its interval.

    .venv/bin/python benchmarks/plan_accuracy.py --work /tmp/accuracy

Makes texts of the bundled pair with traces, and real rounds of drafts by model and by rule at two
K, on prompts drawn from each task at each temperature: 30 cells. Prompts are then parted again and
again as a plan parts them, some to trace and some held back, and what a plan predicts from the
first is compared with what the real rounds on the others measured. Besides, every K is replayed,
the best of each method is chosen on the traced prompts and replayed on the others. Tokens a round
are no times: a busy machine changes none of them. Writes results/plan_accuracy.json and .md.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.benchmark.bench import bench
from spsbench.metrics.intervals import Floats, Jackknife, over
from spsbench.planning.candidates import candidate_of
from spsbench.planning.forecast.predictions import Candidate, predicted, rounds_of, selection_factor
from spsbench.settings.cell import Cell
from spsbench.settings.labels import drafting
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.store.traces import Traces, read_traces

RESULTS = Path(__file__).parent / "results"
SETTINGS = (
    ("xsum:data=mini", 1.0),
    ("xsum:data=mini", 0.0),
    ("humaneval", 1.0),
    ("humaneval", 0.7),
    ("humaneval", 0.0),
)
DRAFTERS, KS = ("model", "suffix", "ngram"), "2,6"
EVERY_K = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
SIMULATIONS, ALL = 50, 2000
EMITTED, ROUNDS, VARIANCE, SECONDS = range(4)


def passes(draft: str, drafted: Any) -> Any:
    """Return made-up costs of rounds, in plain passes, by which the best K is chosen."""
    return 1.1 + (0.18 if draft.startswith("model") else 0.07) * drafted


def replayed(candidate: Candidate, traces: Traces) -> dict[str, Floats]:
    """Return prompt -> emitted tokens, expected rounds, their variance, and made-up seconds."""
    sums, draft = {}, traces.drafts[candidate.draft]
    for text, trace in traces.of(candidate.draft):
        expected = rounds_of(candidate, draft, text, trace, ALL // SIMULATIONS)
        cost = float(expected.weights @ passes(candidate.draft, expected.drafted))
        counts = len(text.q), float(expected.weights.sum()), expected.variance, cost
        sums[text.key[1]] = np.array(counts)
    return sums


def tau(rows: Floats) -> float:
    """Return emitted tokens over rounds."""
    return float(rows[:, EMITTED].sum() / rows[:, ROUNDS].sum())


def splits(prompts: int, traced: int, held_back: int, times: int) -> Iterator[tuple[Any, Any]]:
    """Yield the places of traced prompts and of held-back ones, drawn anew each time."""
    draw = np.random.default_rng(0)
    for _ in range(times):
        order = draw.permutation(prompts)
        yield order[:traced], order[traced : traced + held_back]


def against_real_rounds(
    replay: Floats, real: Floats, flags: argparse.Namespace
) -> dict[str, float]:
    """Compare predictions of one cell with real rounds on the prompts that were held back."""
    held, of_mean, errors, widths = 0, 0, [], []
    for traced, back in splits(len(replay), flags.traced, flags.held_back, flags.splits):
        rows, measured = replay[traced], tau(real[back])
        sums = Jackknife(rows[:, [EMITTED, ROUNDS]], np.arange(len(rows)))
        mean = sums.estimate(over(0, 1), 1)
        if mean is None or mean.low is None or mean.high is None:
            continue
        chances = float(rows[:, VARIANCE].sum()), float(rows[:, ROUNDS].sum())
        wide = predicted(mean, len(rows), flags.held_back, *chances)
        held += (wide.low or 0) <= measured <= (wide.high or 0)
        of_mean += mean.low <= measured <= mean.high
        errors.append(np.log(measured / mean.mean))
        widths.append(np.log((wide.high or 1) / (wide.low or 1)) / 2)
    whole = tau(replay), tau(real)
    return {
        "replayed": whole[0],
        "measured": whole[1],
        "held": held / len(errors),
        "held by the interval of the mean": of_mean / len(errors),
        "bias": float(np.mean(errors)),
        "half width": float(np.mean(widths)),
    }


def of_the_best(every: Floats, traced: int, flags: argparse.Namespace) -> dict[str, float]:
    """Compare the best K by the traced prompts with the same K on all others, by replay.

    Args:
        every: [K, prompts, 4] as `replayed`.
    """
    raw, corrected = [], []
    for chosen_by, others in splits(every.shape[1], traced, every.shape[1], flags.splits):
        rows = every[:, chosen_by]
        total = rows.sum(1)
        gains = total[:, EMITTED] / total[:, SECONDS]
        best = int(gains.argmax())
        factor = selection_factor(rows[..., [EMITTED, SECONDS]])
        error = np.log(tau(every[best, others]) / tau(rows[best]))
        raw.append(error)
        corrected.append(error - np.log(factor))
    return {"bias": float(np.mean(corrected)), "bias uncorrected": float(np.mean(raw))}


def setting(task: str, temperature: float, flags: argparse.Namespace) -> dict[str, Any]:
    """Measure one task at one temperature."""
    name = f"{task.partition(':')[0]}-{temperature:g}"
    out = flags.work / name
    bench(
        task,
        out=out,
        resume=(out / "manifest.json").exists(),
        target="nano",
        drafter=list(DRAFTERS),
        k=KS,
        limit=flags.prompts,
        sample_seed=0,
        max_new_tokens=128,
        temperature=temperature,
        top_p=1.0,
        record="trace",
        threads=flags.threads,
    )
    traces = read_traces([out])
    real: dict[str, dict[str, Floats]] = {}
    for record in records(out):
        if record.error is None:
            counts = sum(r.emitted for r in record.rounds), len(record.rounds)
            real.setdefault(record.cell, {})[record.sample] = np.array(counts, np.float64)
    cells = [Cell.from_json(values) for values in Manifest.load(out).cells.values()]
    rows = {}
    for cell in (each for each in cells if each.k):
        by_prompt = replayed(candidate_of(cell), traces)
        both = [prompt for prompt in by_prompt if prompt in real[cell.id]]
        replay = np.stack([by_prompt[prompt] for prompt in both])
        measured = np.stack([real[cell.id][prompt] for prompt in both])
        rows[str(candidate_of(cell))] = against_real_rounds(replay, measured, flags)
    best = {}
    drafting_cells = sorted((c for c in cells if c.k), key=drafting)
    for draft, group in groupby(drafting_cells, key=drafting):
        rule = str(next(group).verifier)
        candidates = [Candidate(draft=draft, verifier=rule, k=k) for k in EVERY_K]
        by_k = [replayed(each, traces) for each in candidates]
        every = np.stack([np.stack(list(each.values())) for each in by_k])
        for traced in flags.few:
            best[f"{draft}, {rule}, by {traced} prompts"] = of_the_best(every, traced, flags)
    return {"task": task, "temperature": temperature, "cells": rows, "best": best}


def table(found: Sequence[dict[str, Any]], flags: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    rows = [(each, name, row) for each in found for name, row in each["cells"].items()]
    held = sum(row["held"] for *_, row in rows) / len(rows)
    before = sum(row["held by the interval of the mean"] for *_, row in rows) / len(rows)
    bias = sum(row["bias"] for *_, row in rows) / len(rows)
    yield f"`python benchmarks/plan_accuracy.py --work {flags.work}`"
    yield ""
    yield (
        f"{flags.traced} traced and {flags.held_back} held-back prompts of {flags.prompts}, drawn "
        f"{flags.splits} times in each of {len(rows)} cells. The interval holds the measured tau "
        f"in {held:.1%}, that of the mean alone in {before:.1%}; the mean of ln(measured / "
        f"predicted) is {bias:+.2%}."
    )
    yield ""
    yield "| task | T | candidate | tau replayed | measured | held | of the mean | bias |"
    yield "| :-- | --: | :-- | --: | --: | --: | --: | --: |"
    for each, name, row in rows:
        yield (
            f"| {each['task']} | {each['temperature']:g} | {name} | {row['replayed']:.2f} | "
            f"{row['measured']:.2f} | {row['held']:.0%} | "
            f"{row['held by the interval of the mean']:.0%} | {row['bias']:+.1%} |"
        )
    yield ""
    yield "The best K of a method by few prompts, on all others (replayed):"
    yield ""
    for traced in flags.few:
        best = [
            row
            for each in found
            for name, row in each["best"].items()
            if name.endswith(f"by {traced} prompts")
        ]
        means = {name: sum(row[name] for row in best) / len(best) for name in best[0]}
        yield (
            f"- by {traced} prompts {means['bias']:+.1%} on the mean, uncorrected "
            f"{means['bias uncorrected']:+.1%}."
        )
    yield ""
    yield "| task | T | method | bias | uncorrected |"
    yield "| :-- | --: | :-- | --: | --: |"
    for each in found:
        for name, row in each["best"].items():
            yield (
                f"| {each['task']} | {each['temperature']:g} | {name} | {row['bias']:+.1%} | "
                f"{row['bias uncorrected']:+.1%} |"
            )


def main() -> None:
    """Measure all settings and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs; gone on with")
    parser.add_argument("--prompts", type=int, default=130)
    parser.add_argument("--traced", type=int, default=64)
    parser.add_argument("--held-back", type=int, default=24)
    parser.add_argument("--splits", type=int, default=400)
    parser.add_argument("--few", type=int, nargs="+", default=[12, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "plan_accuracy")
    flags = parser.parse_args()
    found = [setting(task, temperature, flags) for task, temperature in SETTINGS]
    flags.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    flags.out.with_suffix(".md").write_text("\n".join(table(found, flags)) + "\n")


if __name__ == "__main__":
    main()

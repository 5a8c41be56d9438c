"""How well a plan predicts tokens per round: measured on held-back prompts against its interval.

    .venv/bin/python benchmarks/plan_accuracy.py --work /tmp/accuracy

Writes texts of the bundled pair with traces, and real rounds of three drafters at two K, on prompts
drawn from each task at each temperature: 30 configurations. Prompts are then split again and again
as a plan splits them, some to trace and some held back, and what a plan predicts from the first is
compared with what the real rounds on the others measured. Also, every K is replayed, the best of
each method is chosen on the traced prompts and replayed on the others. A busy machine changes no
tokens a round. Writes results/plan_accuracy.json and .md.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.benchmark.bench import bench
from spsbench.metrics.intervals import Floats, Jackknife, ratio_of
from spsbench.planning.forecast.predictions import predict_for_others, rounds_of, selection_factor
from spsbench.settings.cell import Cell, constant
from spsbench.settings.method import Drafting, Method
from spsbench.spec import Spec
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.store.traces import Traces, read_traces
from timing import RESULTS, table

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


def passes(draft: Drafting, drafted: Any) -> Any:
    """Return assumed costs of rounds, in plain passes, by which the best K is chosen."""
    return 1.1 + (0.18 if draft.drafter == Spec("model") else 0.07) * drafted


def replayed(method: Method, traces: Traces) -> dict[str, Floats]:
    """Return prompt -> emitted tokens, expected rounds, their variance, and assumed seconds."""
    sums, draft = {}, traces.drafts[method.drafting]
    for text, trace in traces.of(method.drafting):
        expected = rounds_of(method, draft, text, trace, ALL // SIMULATIONS)
        cost = float(expected.weights @ passes(method.drafting, expected.drafted))
        counts = len(text.q), float(expected.weights.sum()), expected.variance, cost
        sums[text.key[1]] = np.array(counts)
    return sums


def tau(rows: Floats) -> float:
    """Return emitted tokens over rounds."""
    return float(rows[:, EMITTED].sum() / rows[:, ROUNDS].sum())


def splits(prompts: int, traced: int, held_back: int, times: int) -> Iterator[tuple[Any, Any]]:
    """Yield the indices of traced prompts and of held-back ones, drawn anew each time."""
    draw = np.random.default_rng(0)
    for _ in range(times):
        order = draw.permutation(prompts)
        yield order[:traced], order[traced : traced + held_back]


def against_real_rounds(
    replay: Floats, real: Floats, flags: argparse.Namespace
) -> dict[str, float]:
    """Compare predictions of one configuration with real rounds on the held-back prompts."""
    covered, covered_by_mean, errors, widths = 0, 0, [], []
    for traced, held_back in splits(len(replay), flags.traced, flags.held_back, flags.splits):
        rows, measured = replay[traced], tau(real[held_back])
        sums = Jackknife(rows[:, [EMITTED, ROUNDS]], np.arange(len(rows)))
        mean = sums.estimate(ratio_of(0, 1), 1)
        if mean is None or mean.low is None or mean.high is None:
            continue
        chances = float(rows[:, VARIANCE].sum()), float(rows[:, ROUNDS].sum())
        interval = predict_for_others(mean, len(rows), flags.held_back, *chances)
        covered += (interval.low or 0) <= measured <= (interval.high or 0)
        covered_by_mean += mean.low <= measured <= mean.high
        errors.append(np.log(measured / mean.mean))
        widths.append(np.log((interval.high or 1) / (interval.low or 1)) / 2)
    return {
        "replayed": tau(replay),
        "measured": tau(real),
        "held": covered / len(errors),
        "held by the interval of the mean": covered_by_mean / len(errors),
        "bias": float(np.mean(errors)),
        "half width": float(np.mean(widths)),
    }


def of_the_best(every: Floats, traced: int, flags: argparse.Namespace) -> dict[str, float]:
    """Compare the best K by the traced prompts with the same K on all others, by replay.

    Args:
        every: [K, prompts, 4] as `replayed`.
    """
    raw, corrected = [], []
    for chosen, others in splits(every.shape[1], traced, every.shape[1], flags.splits):
        rows = every[:, chosen]
        total = rows.sum(1)
        gains = total[:, EMITTED] / total[:, SECONDS]
        best = int(gains.argmax())
        factor = selection_factor(rows[..., [EMITTED, SECONDS]])
        error = np.log(tau(every[best, others]) / tau(rows[best]))
        raw.append(error)
        corrected.append(error - np.log(factor))
    return {"bias": float(np.mean(corrected)), "bias uncorrected": float(np.mean(raw))}


def measure(task: str, temperature: float, flags: argparse.Namespace) -> dict[str, Any]:
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
        score=False,
        threads=flags.threads,
    )
    traces = read_traces([out])
    real: dict[str, dict[str, Floats]] = {}
    for record in records(out):
        if record.error is None:
            counts = sum(r.emitted for r in record.rounds), len(record.rounds)
            real.setdefault(record.cell, {})[record.sample] = np.array(counts, np.float64)
    cells = [
        cell for values in Manifest.load(out).cells.values() if (cell := Cell.from_json(values)).k
    ]
    rows = {}
    for cell in cells:
        by_prompt = replayed(Method.of(cell), traces)
        both = [prompt for prompt in by_prompt if prompt in real[cell.id]]
        replay = np.stack([by_prompt[prompt] for prompt in both])
        measured = np.stack([real[cell.id][prompt] for prompt in both])
        rows[str(Method.of(cell))] = against_real_rounds(replay, measured, flags)
    best = {}
    by_label = sorted(cells, key=lambda cell: str(Drafting.of(cell)))
    for draft, group in groupby(by_label, key=Drafting.of):
        rule = str(next(group).verifier)
        candidates = [Method(draft, rule, constant(k)) for k in EVERY_K]
        every = np.stack([[*replayed(candidate, traces).values()] for candidate in candidates])
        for traced in flags.few:
            best[f"{draft}, {rule}, by {traced} prompts"] = of_the_best(every, traced, flags)
    return {"task": task, "temperature": temperature, "cells": rows, "best": best}


def page(settings: Sequence[dict[str, Any]], flags: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    rows = [row for setting in settings for row in setting["cells"].values()]
    held, by_mean, bias = (
        sum(row[name] for row in rows) / len(rows)
        for name in ("held", "held by the interval of the mean", "bias")
    )
    yield f"`python benchmarks/plan_accuracy.py --work {flags.work}`"
    yield ""
    yield (
        f"{flags.traced} traced and {flags.held_back} held-back prompts of {flags.prompts}, drawn "
        f"{flags.splits} times in each of {len(rows)} cells. The interval holds the measured tau "
        f"in {held:.1%}, that of the mean alone in {by_mean:.1%}; the mean of ln(measured / "
        f"predicted) is {bias:+.2%}."
    )
    yield ""
    yield table(
        {
            "task": setting["task"],
            "T": f"{setting['temperature']:g}",
            "candidate": candidate,
            "tau replayed": f"{row['replayed']:.2f}",
            "measured": f"{row['measured']:.2f}",
            "held": f"{row['held']:.0%}",
            "of the mean": f"{row['held by the interval of the mean']:.0%}",
            "bias": f"{row['bias']:+.1%}",
        }
        for setting in settings
        for candidate, row in setting["cells"].items()
    )
    yield "The best K of a method by few prompts, on all others (replayed):"
    yield ""
    for traced in flags.few:
        best = [
            row
            for setting in settings
            for method, row in setting["best"].items()
            if method.endswith(f"by {traced} prompts")
        ]
        corrected, raw = (
            sum(row[name] for row in best) / len(best) for name in ("bias", "bias uncorrected")
        )
        yield f"- by {traced} prompts {corrected:+.1%} on the mean, uncorrected {raw:+.1%}."
    yield ""
    yield table(
        {
            "task": setting["task"],
            "T": f"{setting['temperature']:g}",
            "method": method,
            "bias": f"{row['bias']:+.1%}",
            "uncorrected": f"{row['bias uncorrected']:+.1%}",
        }
        for setting in settings
        for method, row in setting["best"].items()
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
    settings = [measure(task, temperature, flags) for task, temperature in SETTINGS]
    flags.out.with_suffix(".json").write_text(json.dumps(settings, indent=1) + "\n")
    flags.out.with_suffix(".md").write_text("\n".join(page(settings, flags)))


if __name__ == "__main__":
    main()

"""How acceptance depends on sampling parameters and on tokens: `make reproduce-robustness`.

    python recipes/robustness.py nano            writes results/robustness/nano.* and two plots

Chen et al. 2023 (section 4) call acceptance robust to the exact parameters, and (section 6) explain
why code gains more. Texts of plain sampling are made under three warps (`CONTEXTS`). One pass of
target and draft over each gives the logits of both, to which every warp of `GRID` is applied: the
chance that a draft token is kept, sum_x min(p, q)(x), at each position, and the rounds of K tokens
that these chances make. Contexts stay those of the warp that made the text. `CHECKS` are really
run. Each token of the texts under `PAPER` is also sorted by length, repetition and entropy.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.benchmark.generation import Generation
from spsbench.benchmark.target_laws import TextTracer
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Scores
from spsbench.methods.resolve import resolve
from spsbench.metrics.intervals import SHARE, Estimate, Floats, Jackknife, Statistic, over
from spsbench.models.cache import Loaded
from spsbench.models.prompts import ids_of
from spsbench.pair.load import load
from spsbench.planning.forecast.rounds import Coins, room_of, rounds
from spsbench.plugins import make
from spsbench.reports.plots import svg
from spsbench.reports.reporter import Curve, Figure, Panel, Point
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.experiment import task_spec
from spsbench.settings.sweep import Sweep

OUT = Path(__file__).parents[1] / "results" / "robustness"
PAIRS: dict[str, dict[str, Any]] = {
    "nano": {"target": "nano", "draft": "nano-draft"},
    # SmolLM2 has no smaller model of its family: it drafts for itself with weights of 4 bits.
    "smollm2": {"target": "smollm2", "drafter": "self:int4", "dtype": "bfloat16"},
}
CHATS = ("smollm2",)  # prompts in the chat template
TASKS = {"articles": "xsum:data=mini", "code": "humaneval"}
K = 4
MAX_PROMPT = 300  # newest tokens of a prompt

GREEDY, PAPER, FULL = Warp(temperature=0.0), Warp(temperature=0.8, top_p=0.95), Warp()
CONTEXTS = (GREEDY, PAPER, FULL)
AXES = {
    "temperature": [Warp(temperature=t) for t in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5)],
    "top-k (T = 1)": [Warp(top_k=k) for k in (1, 5, 10, 20, 50, 100)],
    "top-p (T = 1)": [Warp(top_p=p) for p in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)],
}
GRID = tuple(dict.fromkeys([*(warp for warps in AXES.values() for warp in warps), PAPER]))
CHECKS = (Warp(temperature=0.4), Warp(top_k=5), Warp(top_p=0.5))

FACTORS = {
    "characters": (1, 2, 3, 4, 5, 7, 9),
    "repeated": (0, 1),
    "entropy": (0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0),
}
"""Factor -> the least value of each bin."""


class TextSums(NamedTuple):
    """What one text adds: sums of rounds under each warp, and columns of its tokens."""

    rounds: Floats  # [warps, 4] emitted, rounds, tested, kept
    tokens: Floats  # [L, 4] chance to be kept, characters, repeated, entropy of q


def sums_of(overlap: Floats) -> list[float]:
    """Return emitted tokens, rounds, tested and kept draft tokens of a text of [L] overlaps."""
    expected = rounds(Coins.sampled(overlap, None, "match", K), K, room_of(len(overlap)))
    kept, tested = expected.slots
    return [len(overlap), expected.weights.sum(), tested.sum(), kept.sum()]


def prompts(task: str, loaded: Loaded, count: int, chat: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield the ids of the first prompts of a task, by their names."""
    samples = make("tasks", task_spec(Sweep(task=task))).samples(lambda text: True)
    for number, sample in zip(range(count), samples, strict=False):
        ids = ids_of(loaded, sample.prompt, chat=chat, system=None)
        yield str(number), list(ids)[-MAX_PROMPT:]  # type: ignore[arg-type]


def generated(cell: Cell, loaded: Loaded, prompt: Sequence[int], name: str) -> Generation:
    """Return a finished generation."""
    generation = Generation(cell, loaded, prompt, sample=name)
    for _ in generation:
        pass
    return generation


class TextPasses:
    """One pass of the target and of its draft over texts of plain sampling under a warp."""

    def __init__(self, cell: Cell, loaded: Loaded, warp: Warp) -> None:
        self.plain, self.loaded, self.warp = resolve(cell.auto_regressive), loaded, warp
        self.target = TextTracer(self.plain, loaded)
        self.draft = DraftTracer("draft", [cell], loaded, {}).drafter

    def text(self, name: str, prompt: list[int]) -> TextSums | None:
        """Return the sums of the text that follows a prompt; None for an empty text."""
        tokens = generated(self.plain, self.loaded, prompt, name).record.tokens
        if not tokens:
            return None
        rows = torch.cat([laws.logits for laws in self.target.laws(prompt, tokens)])
        self.draft.begin(prompt, Scores(rows[:0], {}))
        along = self.draft.along([*prompt, *tokens], len(prompt), lambda logits: logits)
        if along is None:
            raise TypeError("expected a draft that is sampled")
        by_warp = []
        for warp in GRID:
            q, p = warp(rows), warp(along.laws[:, : rows.shape[1]])
            by_warp.append(sums_of(torch.minimum(p, q).sum(-1).double().numpy()))
        columns = self.columns(prompt, tokens, self.warp(rows), self.warp(along.laws))
        return TextSums(np.array(by_warp), columns)

    def columns(self, prompt: list[int], tokens: list[int], q: Tensor, p: Tensor) -> Floats:
        """Return [L, 4] chance to be kept, characters, repeated bigram, entropy of q in nats."""
        at = torch.tensor(tokens)[:, None]
        kept = (p.gather(1, at) / q.gather(1, at)).clamp(max=1)[:, 0]
        text = [*prompt, *tokens]
        seen = set(pairwise(prompt))
        repeated = []
        for bigram in pairwise(text[len(prompt) - 1 :]):
            repeated.append(bigram in seen)
            seen.add(bigram)
        characters = [len(self.loaded.tokenizer.decode([token])) for token in tokens]
        entropy = torch.special.entr(q).sum(-1)
        return np.column_stack([kept.double(), characters, repeated, entropy.double()])


def estimated(rows: Floats, statistic: Statistic, scale: Any = None) -> dict[str, float | None]:
    """Return a figure of the sums of texts with its 95 % interval over texts."""
    jackknife = Jackknife(rows, np.arange(len(rows)))
    options = {} if scale is None else {"scale": scale}
    estimate = jackknife.estimate(statistic, 1, **options) or Estimate(np.nan, None, None, 0)
    ends = (None if end is None else round(end, 4) for end in (estimate.low, estimate.high))
    return dict(zip(("mean", "low", "high"), (round(estimate.mean, 4), *ends), strict=True))


def figures(rows: Floats) -> dict[str, Any]:
    """Return alpha and tau of [texts, 4] sums of rounds."""
    return {"alpha": estimated(rows, over(3, 2), SHARE), "tau": estimated(rows, over(0, 1))}


def by_token(task: str, texts: Sequence[Floats]) -> Iterator[dict[str, Any]]:
    """Yield the share and the chance of the tokens of each bin of each factor."""
    total = sum(map(len, texts))
    for column, (factor, starts) in enumerate(FACTORS.items(), start=1):
        bins = [np.digitize(text[:, column], starts) - 1 for text in texts]
        for number, start in enumerate(starts):
            inside = [text[bin_of == number, 0] for text, bin_of in zip(texts, bins, strict=True)]
            rows = np.array([[chance.sum(), len(chance)] for chance in inside])
            if rows[:, 1].sum():
                share = round(rows[:, 1].sum() / total, 4)
                alpha = estimated(rows, over(0, 1), SHARE)
                yield {
                    "task": task,
                    "factor": factor,
                    "from": start,
                    "share": share,
                    "alpha": alpha,
                }


def gaps(tokens: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, by factor, alpha of articles, of code, and of articles with the shares of code."""
    for factor in FACTORS:
        articles, code = (
            {each["from"]: each for each in tokens if (each["task"], each["factor"]) == of}
            for of in (("articles", factor), ("code", factor))
        )

        def alpha(bins: dict[Any, Any], shares: dict[Any, Any]) -> float:
            both = [start for start in shares if start in bins]
            weight = sum(shares[start]["share"] for start in both)
            kept = sum(shares[start]["share"] * bins[start]["alpha"]["mean"] for start in both)
            return round(kept / weight, 4)

        yield {
            "factor": factor,
            "articles": alpha(articles, articles),
            "code": alpha(code, code),
            "articles as code": alpha(articles, code),
        }


def measured(name: str, count: int, tokens: int) -> dict[str, Any]:
    """Measure a pair: the grid over the texts of each warp, the checks, and the tokens."""
    options = PAIRS[name] | {"max_new_tokens": tokens, "verifier": "sps", "k": K}
    loaded = load(**options).loaded
    grid, checks, of_tokens = [], [], []
    for task, spec in TASKS.items():
        asked = list(prompts(spec, loaded, count, name in CHATS))
        for context in CONTEXTS:
            cell = resolve(make_cell(**options | settings(context)))
            passes = TextPasses(cell, loaded, context)
            texts = [sums for prompt in asked if (sums := passes.text(*prompt)) is not None]
            for number, warp in enumerate(GRID):
                rows = np.stack([text.rounds[number] for text in texts])
                row = {"task": task, "context": str_of(context), **settings(warp)}
                grid.append({**row, **figures(rows)})
            if context == PAPER:
                of_tokens += by_token(task, [text.tokens for text in texts])
            print(f"{name}: {len(texts)} texts of {task}, {str_of(context)}", flush=True)
        for warp in CHECKS:
            cell = resolve(make_cell(**options | settings(warp)))
            runs = [generated(cell, loaded, ids, number).record for number, ids in asked]
            rows = np.array(
                [
                    [
                        len(run.tokens),
                        len(run.rounds),
                        sum(each.tested for each in run.rounds),
                        sum(each.accepted for each in run.rounds),
                    ]
                    for run in runs
                ],
                dtype=np.float64,
            )
            checks.append({"task": task, **settings(warp), **figures(rows)})
            print(f"{name}: {task} really run, {str_of(warp)}", flush=True)
    return {
        "pair": name,
        "draft": PAIRS[name].get("draft") or PAIRS[name]["drafter"],
        "k": K,
        "prompts": count,
        "max_new_tokens": tokens,
        "grid": grid,
        "checks": checks,
        "tokens": of_tokens,
        "gaps": list(gaps(of_tokens)),
    }


def settings(warp: Warp) -> dict[str, float]:
    """Return the options of a warp."""
    return {"temperature": warp.temperature, "top_k": warp.top_k, "top_p": warp.top_p}


def str_of(warp: Warp) -> str:
    """Return a warp in words: `T 0.8, top-p 0.95`."""
    cuts = [f"top-k {warp.top_k}"] * bool(warp.top_k) + [f"top-p {warp.top_p:g}"] * (warp.top_p < 1)
    return ", ".join([f"T {warp.temperature:g}", *cuts]) if warp.temperature else "greedy"


def point(x: float, estimate: dict[str, float]) -> Point:
    """Return a point with its interval."""
    return Point(x, estimate["mean"], estimate["low"], estimate["high"])


def warp_figure(values: dict[str, Any]) -> Figure:
    """Return alpha and tau against each parameter: a line for task and contexts, runs as points."""
    keys = dict(zip(AXES, ("temperature", "top_k", "top_p"), strict=True))
    panels = []
    for figure in ("alpha", "tau"):
        for axis, warps in AXES.items():
            key, among = keys[axis], [settings(warp) for warp in warps]
            items = []
            lines = [(task, context) for task in TASKS for context in map(str_of, CONTEXTS)]
            for line, (task, context) in enumerate([*lines, *((task, "") for task in TASKS)]):
                rows = [
                    row
                    for row in values["grid" if context else "checks"]
                    if row["task"] == task and row.get("context", "") == context
                    if {name: row[name] for name in settings(FULL)} in among
                ]
                points = tuple(point(row[key], row[figure]) for row in sorted_by(rows, key))
                if points:
                    name = f"{task}, texts of {context}" if context else "really run"
                    items.append(Curve(name=name, points=points, line=min(line, len(lines))))
            panels.append(Panel(title=f"{figure}, K = {K}", x=axis, items=tuple(items)))
    title = f"Acceptance by sampling parameters: {values['pair']}, draft {values['draft']}"
    return Figure(title=title, panels=tuple(panels))


def sorted_by(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return rows by the value of a parameter."""
    return sorted(rows, key=lambda row: row[key])


def token_figure(values: dict[str, Any]) -> Figure:
    """Return the chance to be kept, and the share of tokens, by bin of each factor."""
    units = {
        "characters": "characters of the token, at least",
        "repeated": "bigram stands in the text before: 0 no, 1 yes",
        "entropy": "entropy of q in nats, at least",
    }
    panels = []
    for figure in ("alpha", "share"):
        for factor in FACTORS:
            items = []
            for line, task in enumerate(TASKS):
                points = tuple(
                    point(row["from"], row["alpha"])
                    if figure == "alpha"
                    else Point(row["from"], row["share"])
                    for row in values["tokens"]
                    if (row["task"], row["factor"]) == (task, factor)
                )
                items.append(Curve(name=task, points=points, line=line))
            title = "chance to be kept" if figure == "alpha" else "share of the tokens"
            panels.append(
                Panel(title=title, x=units[factor], items=tuple(items), whole=True, from_zero=True)
            )
    title = f"Tokens of articles and code, {str_of(PAPER)}: {values['pair']}, {values['draft']}"
    return Figure(title=title, panels=tuple(panels))


def table(values: dict[str, Any]) -> str:
    """Return the figures as Markdown: the grid, the checks beside it, the tokens."""

    def shown(estimate: dict[str, float]) -> str:
        mean, low, high = (estimate[name] for name in ("mean", "low", "high"))
        return f"{mean:.2f}" if low is None else f"{mean:.2f} ({low:.2f} to {high:.2f})"

    def of(row: dict[str, Any]) -> str:
        return str_of(Warp(**{name: row[name] for name in settings(FULL)}))

    contexts = list(dict.fromkeys(row["context"] for row in values["grid"]))
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in values["grid"]:
        cells.setdefault((row["task"], of(row)), {})[row["context"]] = row
    runs = {(row["task"], of(row)): row for row in values["checks"]}
    columns = [*(f"texts of {context}" for context in contexts), "really run"]
    lines = [
        f"# Acceptance by sampling parameters: {values['pair']}, draft {values['draft']}",
        "",
        f"{values['prompts']} prompts a task, up to {values['max_new_tokens']} tokens, K = {K}; "
        "`make reproduce-robustness PAIR=" + values["pair"] + "`. Columns: the warp that made the",
        "texts, whose contexts the row's warp is applied to; and real rounds under the row's warp.",
        "Intervals are over prompts.",
        "",
    ]
    for figure in ("alpha", "tau"):
        lines += [
            f"## {figure}",
            "",
            "| task | warp | " + " | ".join(columns) + " |",
            "|---|---|" + "---|" * len(columns),
        ]
        for task, warp in ((task, str_of(warp)) for task in TASKS for warp in GRID):
            by_context, run = cells[task, warp], runs.get((task, warp))
            figures_shown = [shown(by_context[context][figure]) for context in contexts]
            figures_shown.append("" if run is None else shown(run[figure]))
            lines.append(f"| {task} | {warp} | " + " | ".join(figures_shown) + " |")
        lines.append("")
    lines += [f"## Tokens of the texts under {str_of(PAPER)}", ""]
    lines += ["| factor | at least | share: articles | code | kept: articles | code |"]
    lines += ["|---|---|---|---|---|---|"]
    for factor, starts in FACTORS.items():
        for start in starts:
            pair = [
                next(
                    (
                        row
                        for row in values["tokens"]
                        if (row["task"], row["factor"], row["from"]) == (task, factor, start)
                    ),
                    None,
                )
                for task in TASKS
            ]
            shares = ["0" if row is None else f"{row['share']:.3f}" for row in pair]
            kept = ["" if row is None else shown(row["alpha"]) for row in pair]
            lines.append(f"| {factor} | {start:g} | " + " | ".join([*shares, *kept]) + " |")
    lines += ["", "| factor | articles | code | articles with the shares of code |"]
    lines += ["|---|---|---|---|"]
    for gap in values["gaps"]:
        means = " | ".join(f"{gap[name]:.3f}" for name in ("articles", "code", "articles as code"))
        lines.append(f"| {gap['factor']} | {means} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write and draw."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("pair", choices=list(PAIRS))
    options.add_argument("--prompts", type=int, default=40, help="of each task")
    options.add_argument("--tokens", type=int, default=64, help="of each text at most")
    options.add_argument("--out", type=Path, default=OUT)
    options.add_argument("--draw", action="store_true", help="only draw what was measured")
    flags = options.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    path = flags.out / f"{flags.pair}.json"
    if not flags.draw:
        values = measured(flags.pair, flags.prompts, flags.tokens)
        path.write_text(json.dumps(values) + "\n")
    values = json.loads(path.read_text())
    path.with_suffix(".md").write_text(table(values))
    for kind, figure in (("warps", warp_figure(values)), ("tokens", token_figure(values))):
        stem = flags.out / f"{flags.pair}-{kind}"
        stem.with_suffix(".svg").write_bytes(svg(figure))


if __name__ == "__main__":
    main()

"""A table of methods on several tasks, from a configuration: tau, speed-up, quality and parity.

    .venv/bin/python benchmarks/runs.py configs/methods.toml --out results/methods
    .venv/bin/python benchmarks/runs.py configs/methods.toml --limit 164 --samples 10 --tokens 256

Each part of the configuration is run on every task of `--tasks`. All methods of a task run on each
prompt in turn, so a machine's drift falls on all; a stopped run is resumed by the same command. It
prints how long it will take, and writes OUT.json and OUT.md; the run itself is in `work`.
"""

import argparse
import ast
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from corpora import stdlib
from spsbench.benchmark.bench import conduct, plan_experiment
from spsbench.cli.bench import read_experiment
from spsbench.messages import lines_to
from spsbench.metrics.intervals import Estimate
from spsbench.registry import entries
from spsbench.reports.reporter import Table
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.experiment import Experiment, TaskPart
from timing import table

WORK = Path("work")
COPYING = "copying"  # the name of the task that copies functions
TASKS = ("humaneval", "xsum:data=mini", COPYING)
REQUESTS = (
    "Repeat this function, and change nothing.\n\n```python\n{text}\n```",
    "Rename the function `{name}` to `compute` and change nothing else.\n\n```python\n{text}\n```",
)
LINES = (5, 12)  # of a function that is copied
COPIES = 40
QUALITY = ("pass@1", "rouge2")  # in the table; the file has all


def copying() -> Iterator[dict[str, str]]:
    """Yield functions of modules that no drafter of ours has seen, and what must come out."""
    functions: list[tuple[str, str]] = []
    for module in stdlib.load(pinned=False):
        if module.split != "heldout":
            continue
        lines = module.text.splitlines()
        for node in ast.parse(module.text).body:
            if isinstance(node, ast.FunctionDef):
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if LINES[0] <= text.count("\n") < LINES[1]:
                    functions.append((node.name, text))
    step = max(1, len(functions) // COPIES)
    for number, (name, text) in enumerate(functions[::step][:COPIES]):
        renamed = number % len(REQUESTS) == 1
        yield {
            "id": f"copying/{number}",
            "prompt": REQUESTS[renamed].format(name=name, text=text),
            "reference": text.replace(name, "compute") if renamed else text,
        }


def merged(experiment: Experiment) -> Experiment:
    """Return all cells of a task in one part, so that they run in turn."""
    parts: dict[Any, TaskPart] = {}
    for part in experiment.parts:
        earlier = parts.get(part.spec)
        cells = part.cells if earlier is None else (*earlier.cells, *part.cells)
        parts[part.spec] = replace(part, cells=tuple({cell.id: cell for cell in cells}.values()))
    return replace(experiment, parts=tuple(parts.values()))


def rows_of(results: Table) -> Iterator[dict[str, Any]]:
    """Yield a row a method, with intervals."""
    exact = {entry.name: entry.guarantee for entry in entries("verifiers")}
    verdicts = {(cell.id, verdict.metric): verdict for cell, verdict in results.parities}
    for summary in results.whole:
        cell = summary.cell
        ms, speedup = summary.mean_token_time_ms, summary.speedup
        alpha = summary.alpha or summary.alpha_counted
        quality = {name: _ends(score) for name, score in summary.quality.items()}
        yield {
            "task": str(cell.task).partition(":")[0].replace("jsonl", COPYING),
            "setting": _setting(cell),
            "method": _method(cell),
            "rule": "" if cell.k == 0 else cell.verifier.name,
            "guarantee": "" if cell.k == 0 else exact.get(cell.verifier.name, ""),
            "k": cell.k,
            "n": summary.n,
            "failures": summary.failures,
            "tau": _ends(summary.block_efficiency),
            "alpha": _ends(alpha),
            "ms": _ends(ms),
            "speedup": _ends(speedup),
            "under_load": any(figure and figure.loaded for figure in (ms, speedup)),
            "quality": quality,
            "parity": {
                metric: str(verdict)
                for (name, metric), verdict in verdicts.items()
                if name == cell.id
            },
        }


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows in Markdown, a table a task and setting."""
    lines: list[str] = []
    for (task, setting), group in groupby(rows, key=itemgetter("task", "setting")):
        texts = list(group)
        lines += [f"### {task}, {setting} ({texts[0]['n']} texts)", "", table(map(columns, texts))]
    if any(row["under_load"] for row in rows):
        lines += ["\\* measured on a busy machine.", ""]
    return "\n".join(lines)


def columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row as it is shown."""
    quality = {name: row["quality"][name] for name in QUALITY if row["quality"].get(name)}
    return {
        "method": row["method"],
        "rule": row["rule"],
        "K": str(row["k"] or ""),
        "tau": _interval(row["tau"], 2),
        "alpha": _interval(row["alpha"], 3),
        "ms a token": _interval(row["ms"], 1),
        "speed-up": _interval(row["speedup"], 2) + "\\*" * row["under_load"],
        "quality": ", ".join(f"{name} {_interval(score, 3)}" for name, score in quality.items()),
        "parity": ", ".join(f"{name}: {text}" for name, text in row["parity"].items()),
        "guarantee": row["guarantee"],
    }


def _method(cell: Cell) -> str:
    if cell.k == 0:
        return "plain"
    draft, drafter = cell.draft, str(cell.drafter)
    if draft is None or drafter != "model":
        return drafter if cell.k is not None else f"{drafter} {cell.schedule}"
    return f"self:{draft.weights}" if draft.id == cell.target.id else "draft model"


def _setting(cell: Cell) -> str:
    return f"T {cell.temperature:g}, top-p {cell.top_p:g}" if cell.temperature else "greedy"


def _ends(estimate: Estimate | None) -> list[float | None] | None:
    return None if estimate is None else [estimate.mean, estimate.low, estimate.high]


def _interval(values: Sequence[float | None] | None, digits: int) -> str:
    if values is None or values[0] is None:
        return "-"
    value, low, high = values
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    """Estimate, run, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--limit", type=int, help="prompts of each task")
    parser.add_argument("--samples", type=int, help="texts a prompt")
    parser.add_argument("--tokens", type=int, help="maximum tokens of a text")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help=".json and .md; default: work/CONFIG")
    parser.add_argument("--estimate", action="store_true", help="how long it takes, and no more")
    parser.add_argument("--no-score", action="store_true", help="programs are not run")
    flags = parser.parse_args()
    out: Path = flags.out or WORK / flags.config.stem
    WORK.mkdir(exist_ok=True)
    copies = WORK / f"{out.name}-{COPYING}.jsonl"
    copies.write_text("".join(json.dumps(row) + "\n" for row in copying()))

    access = Access(threads=flags.threads, offline=True)
    names = {"limit": flags.limit, "samples": flags.samples, "max_new_tokens": flags.tokens}
    changes = {name: value for name, value in names.items() if value is not None}
    tasks = [f"jsonl:path={copies}" if task == COPYING else task for task in flags.tasks]
    wholes, sweeps = zip(
        *(read_experiment(flags.config, changes | {"task": task}) for task in tasks), strict=True
    )
    request = plan_experiment([sweep for part in sweeps for sweep in part], access, wholes[0])
    folder = OutputFolder(out=WORK / out.name, resume=True, score=not flags.no_score)
    benchmark = conduct(flags.config.stem, folder, access)
    experiment = merged(benchmark.resolve(request))
    for line in benchmark.estimate(experiment):
        if "generations of up to" not in line:  # a line a cell
            print(line, flush=True)
    if flags.estimate:
        return
    result = benchmark.run(experiment)
    if result.finished is None:
        print("stopped: the same command resumes it")
        return
    rows = [row for results in result.report.tables for row in rows_of(results)]
    rows.sort(key=lambda row: (row["task"], row["setting"] != "greedy"))
    options = {name: str(value) for name, value in vars(flags).items() if value is not None}
    values = {"asked": options, "rows": rows}
    out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(rows))
    print(page(rows))


if __name__ == "__main__":
    with lines_to(print):
        main()

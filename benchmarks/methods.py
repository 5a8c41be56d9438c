"""One table of every way to draft on one real model: which wins where on a processor, and why.

    .venv/bin/python benchmarks/methods.py --heads work/smollm2      # 4 prompts of each, 64 tokens
    .venv/bin/python benchmarks/methods.py --heads work/smollm2 --tasks humaneval --limit 164 \
        --samples 10 --tokens 256 --out results/methods-long        # days: pass@1 of 10 samples

SmolLM2-135M-Instruct, asked in its chat template: problems of HumanEval, articles to sum up
(generated ones, or those of --data), and functions of held-out modules to repeat or to rename. Each
greedily and at temperature 0.8, top-p 0.95. Heads are those of `benchmarks/smollm2.py`: a folder
that is not there is left out, and said.

All methods of a task run on each prompt in turn, round by round (`spsbench.bench`'s own machinery),
so a machine's drift falls on all; what is there is not made again. It says first how long it will
take, prints the table, and writes results/methods.json and .md.
"""

import argparse
import ast
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corpora import stdlib
from spsbench.benchmark.bench import conduct, planned
from spsbench.messages import lines_to, log
from spsbench.metrics.intervals import Estimate
from spsbench.registry import entries
from spsbench.reports.reporter import Report, Table
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.grid import Sweep, sweep
from spsbench.settings.models import DEFAULT_DRAFTER

OUT = Path(__file__).parents[1] / "results" / "methods"
SETTINGS: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T 0.8, top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
}
BY_RULE: tuple[dict[str, Any], ...] = (
    {"drafter": "ngram", "k": "4"},
    {"drafter": "suffix", "k": "4"},
    {"drafter": "suffix:nodes=4,offset=2", "k": "4"},
    {"drafter": "suffix:nodes=4,offset=2,shared=true", "k": "4"},
    {"drafter": "copy", "k": "8"},
    {"drafter": "recycling", "k": "4"},
    {"drafter": "recycling:nodes=16", "k": "4"},
)
WITH_TARGET: tuple[dict[str, Any], ...] = (
    {"drafter": "self:skip=half", "k": "2"},
    {"draft": "self:int4", "k": "2,4"},
)
HYBRID, GOODPUT = DEFAULT_DRAFTER["smollm2"]
HEADS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "draft": ({"drafter": "model", "k": "2"},),
    "eagle3": (
        {"drafter": "eagle3", "k": "3"},
        {"drafter": HYBRID, "k": "4"},
        {"drafter": HYBRID, "schedule": GOODPUT},
        {"drafter": "eagle3:width=4,nodes=12", "k": "4"},
    ),
    "medusa": ({"drafter": "medusa", "k": "3"}, {"drafter": "medusa:width=4,nodes=12", "k": "4"}),
    "mlp": ({"drafter": "mlp", "k": "3"},),
}
RULES: Mapping[str, tuple[dict[str, Any], ...]] = {  # where draws have a law, rules differ
    "draft": ({"drafter": "model", "k": "2", "verifier": "block"},),
    "eagle3": (
        {"drafter": "eagle3", "k": "3", "verifier": "block"},
        {"drafter": "eagle3:shape=3x2x1", "k": "3", "verifier": "recursive"},
        {"drafter": "eagle3:shape=3x2x1", "k": "3", "verifier": "traversal"},
    ),
}
ASKED = (
    "Repeat this function, and change nothing.\n\n```python\n{text}\n```",
    "Rename the function `{name}` to `compute` and change nothing else.\n\n```python\n{text}\n```",
)
LINES = (5, 12)  # of a function that is copied
COPIES = 40
PLACES = ("heads", "eagle3", "out", "estimate")  # flags that say nothing of what was measured
QUALITY = ("pass@1", "rouge2")  # in the table; the file has all


def copying() -> Iterator[dict[str, str]]:
    """Functions of modules that no drafter of ours has seen, and what must come out."""
    found: list[tuple[str, str]] = []
    for module in stdlib.load(pinned=False):
        if module.split != "heldout":
            continue
        lines = module.text.splitlines()
        for node in ast.parse(module.text).body:
            if isinstance(node, ast.FunctionDef):
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if LINES[0] <= text.count("\n") < LINES[1]:
                    found.append((node.name, text))
    step = max(1, len(found) // COPIES)
    for number, (name, text) in enumerate(found[::step][:COPIES]):
        renamed = number % len(ASKED) == 1
        yield {
            "id": f"copying/{number}",
            "prompt": ASKED[renamed].format(name=name, text=text),
            "reference": text.replace(name, "compute") if renamed else text,
        }


def arms(heads: Path, eagle3: str | None, sampled: bool) -> Iterator[dict[str, Any]]:
    """Every way to draft and verify, as options."""
    yield from BY_RULE
    yield from WITH_TARGET
    for name, ways in HEADS.items():
        folder = heads / name / "result"
        given = eagle3 if name == "eagle3" else None
        if given is None and not (folder / "training.json").is_file():
            log.info(f"no {name} in {heads}: left out. Train it: benchmarks/smollm2.py {name}")
            continue
        more = RULES.get(name, ()) if sampled else ()
        rounded = {} if name == "draft" else {"draft_weights": "int8"}
        head = {"draft": given or str(folder), **rounded}
        yield from ({**head, **way} for way in (*ways, *more))


def tables(flags: argparse.Namespace, copies: Path) -> list[Sweep]:
    """A table an arm, and one for plain sampling, of every task under every setting."""
    tasks = {
        "humaneval": {"task": "humaneval"},
        "xsum": {"task": "xsum", "data": flags.data or "mini"},
        "copying": {"task": f"jsonl:path={copies}"},
    }
    made: list[Sweep] = []
    for name in flags.tasks.split(","):
        for setting in SETTINGS.values():
            sampled = setting["temperature"] > 0
            shared = {
                **tasks[name],
                **setting,
                "target": flags.target,
                "dtype": flags.dtype,
                "limit": flags.limit,
                "samples": flags.samples if sampled else 1,
                "max_new_tokens": flags.tokens,
            }
            made.append(sweep({**shared, "method": "ars"}))
            made += [
                sweep({**shared, "method": "sps", **arm})
                for arm in arms(flags.heads, flags.eagle3, sampled)
                if not flags.arms or any(word in str(arm) for word in flags.arms.split(","))
            ]
    return made


def merged(experiment: Experiment) -> Experiment:
    """All cells of a task and a setting in one part, so that they run in turn."""
    parts: dict[Any, Part] = {}
    for part in experiment.parts:
        key = (part.spec, part.cells[0].temperature)
        own = parts.get(key)
        cells = part.cells if own is None else (*own.cells, *part.cells)
        parts[key] = replace(part, cells=tuple({cell.id: cell for cell in cells}.values()))
    return replace(experiment, parts=tuple(parts.values()))


def rows_of(table: Table) -> Iterator[dict[str, Any]]:
    """A row a method, with intervals."""
    exact = {entry.name: entry.guarantee for entry in entries("verifiers")}
    verdicts = {(cell.id, verdict.metric): verdict for cell, verdict in table.parities}
    for summary in table.whole:
        cell = summary.cell
        ms, gain = summary.mean_token_time_ms, summary.speedup
        alpha = summary.alpha or summary.alpha_counted
        quality = {name: _plain(value) for name, value in summary.quality.items()}
        yield {
            "task": str(cell.task).partition(":")[0].replace("jsonl", "copying"),
            "setting": _setting(cell),
            "method": _method(cell),
            "rule": "" if cell.k == 0 else cell.verifier.name,
            "guarantee": "" if cell.k == 0 else exact.get(cell.verifier.name, ""),
            "k": cell.k,
            "n": summary.n,
            "failures": summary.failures,
            "tau": _plain(summary.block_efficiency),
            "alpha": _plain(alpha),
            "ms": _plain(ms),
            "speedup": _plain(gain),
            "under_load": any(figure and figure.loaded for figure in (ms, gain)),
            "quality": quality,
            "parity": {
                metric: str(verdict)
                for (name, metric), verdict in verdicts.items()
                if name == cell.id
            },
        }


def shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown, a table a task and setting."""
    lines: list[str] = []
    before = None
    for row in rows:
        place = f"{row['task']}, {row['setting']}"
        if place != before:
            heads = "method|rule|K|tau|alpha|ms a token|speed-up|quality|parity|guarantee"
            rule = ":--|:--|--:|--:|--:|--:|--:|:--|:--|:--"
            lines += ["", f"### {place} ({row['n']} texts)", "", f"|{heads}|", f"|{rule}|"]
            before = place
        quality = ", ".join(
            f"{name} {_told(row['quality'].get(name), 3)}"
            for name in QUALITY
            if row["quality"].get(name)
        )
        parity = ", ".join(f"{name}: {told}" for name, told in row["parity"].items())
        cells = (
            *(row["method"], row["rule"], "" if row["k"] in (0, None) else str(row["k"])),
            *(_told(row["tau"], 2), _told(row["alpha"], 3)),
            *(_told(row["ms"], 1), _told(row["speedup"], 2) + "*" * row["under_load"]),
            *(quality, parity, row["guarantee"]),
        )
        lines.append(f"|{'|'.join(cells)}|")
    if any(row["under_load"] for row in rows):
        lines += ["", "\\* timed while other work had the processors."]
    return "\n".join(lines) + "\n"


def _method(cell: Cell) -> str:
    if cell.k == 0:
        return "plain"
    draft, drafter = cell.draft, str(cell.drafter)
    if draft is None or drafter != "model":
        return drafter if cell.k is not None else f"{drafter} {cell.schedule}"
    return f"self:{draft.weights}" if draft.id == cell.target.id else "draft model"


def _setting(cell: Cell) -> str:
    return next(
        name for name, values in SETTINGS.items() if values["temperature"] == cell.temperature
    )


def _plain(estimate: Estimate | None) -> list[float | None] | None:
    return None if estimate is None else [estimate.mean, estimate.low, estimate.high]


def _told(values: Sequence[float | None] | None, digits: int) -> str:
    if values is None or values[0] is None:
        return "-"
    value, low, high = values
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"


def main() -> None:
    """Estimate, run, print and write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--heads",
        type=Path,
        default=Path("work/smollm2"),
        help="where benchmarks/smollm2.py has trained",
    )
    options.add_argument("--eagle3", help="a head elsewhere: a bundled name or a folder")
    options.add_argument("--target", default="smollm2")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--data", help="articles: a file, hub or mini")
    options.add_argument("--tasks", default="humaneval,xsum,copying")
    options.add_argument("--arms", help="only those with one of these words, e.g. eagle3,ngram")
    options.add_argument("--limit", type=int, default=4, help="prompts of each task")
    options.add_argument("--samples", type=int, default=1, help="texts a prompt, where drawn")
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--threads", type=int)
    options.add_argument("--out", type=Path, default=OUT, help="run, .json and .md")
    options.add_argument("--estimate", action="store_true", help="how long it takes, and no more")
    options.add_argument("--no-score", action="store_true", help="programs are not run")
    flags = options.parse_args()
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    copies = flags.out.with_name(flags.out.name + "-copying.jsonl")
    copies.write_text("".join(json.dumps(each) + "\n" for each in copying()))

    access = Access(threads=flags.threads, offline=True)
    experiment = merged(
        planned(tables(flags, copies), access, title="Every method on SmolLM2", seed=16)
    )
    place = OutputFolder(out=flags.out, resume=True, score=not flags.no_score)
    carried = conduct("methods", place, access)
    for line in carried.estimate(experiment):
        if "generations of up to" not in line:  # a line a cell
            print(line, flush=True)
    if flags.estimate:
        return
    made = carried.run(experiment)
    if made.report is None:
        print("stopped: the same command goes on")
        return
    report: Report = made.report
    rows = [row for table in report.tables for row in rows_of(table)]
    asked = {
        name: str(value)
        for name, value in vars(flags).items()
        if value is not None and name not in PLACES
    }
    remarks = [line for table in report.tables for line in table.remarks]
    text = shown(rows)
    values = {"asked": asked, "rows": rows, "remarks": remarks}
    flags.out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    flags.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    with lines_to(print):
        main()

"""Timing: calls that alternate, ratios within a repetition, and results kept by processor."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

RESULTS = Path(__file__).parent / "results"
VARIABLES = ("SPSBENCH_MARCH", "ONEDNN_MAX_CPU_ISA")  # that limit a processor's instructions


def seconds(call: Callable[[], Any]) -> float:
    """Time a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alternate(
    calls: Mapping[Any, Callable[[], float]], repeats: int, warm_up: int = 3
) -> dict[Any, list[float]]:
    """Return the seconds of each call, by repetition; every second one runs in reverse order.

    A machine's drift falls on all calls, so that ratios within a repetition are of the calls.
    """
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for repeat in range(warm_up + repeats):
        for name in reversed(calls) if repeat % 2 else calls:
            elapsed = calls[name]()
            if repeat >= warm_up:
                times[name].append(elapsed)
    return times


def milliseconds(times: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return round(1e3 * median(times), 2)


def ratio(times: Sequence[float], base: Sequence[float]) -> str:
    """Return the median ratio within a repetition, with its quartiles."""
    ratios = [a / b for a, b in zip(times, base, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"


def keep(path: Path, section: str, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Write rows under the processor's name and a section into `path`, .json and .md."""
    from spsbench.hardware.environment import cpu_kind  # which a peer's interpreter has not

    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_suffix(".json")
    processors = json.loads(file.read_text()) if file.exists() else {}
    limits = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    command = shlex.join([*limits, "python", script, *sys.argv[1:]])
    date = datetime.now(UTC).date().isoformat()
    processors.setdefault(cpu_kind(), {})[section] = {
        "command": command,
        "date": date,
        **facts,
        "rows": rows,
    }
    file.write_text(json.dumps(processors, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(processors))
    print(table(rows))


def page(processors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of all processors."""
    lines = ["Medians; ratios are within a repetition, with their quartiles.", ""]
    for processor, sections in processors.items():
        lines += [f"## {processor}", ""]
        for section, record in sections.items():
            facts = [f"{value} {name}" for name, value in record.items() if name == "threads"]
            origin = ", ".join([f"`{record['command']}`", record["date"], *facts])
            lines += [f"### {section}", "", origin, "", table(record["rows"])]
    return "\n".join(lines)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a table in Markdown; columns are the rows' keys."""
    rows = list(rows)
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [head, ["---"] * len(head), *([row.get(name, "") for name in head] for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)

"""A run as JSON, and as Markdown beside it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arena.contenders.contender import Setting
from arena.figures import best_bandwidth
from arena.goals import OURS, Result, Sizes, results
from arena.table import engines_table, goals_table, overheads
from arena.turns import Run

GB = 1e9


def record(
    run: Run, setting: Setting, pair: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """All that was measured, with what it was measured on.

    Args:
        run: as it came.
        setting: the same for every engine.
        pair: `name`, `bytes` (one pass of the target reads), `weights` (of both, in memory).
        about: machine, versions, command, prompts.
    """
    bandwidth = best_bandwidth(run.bandwidth)
    return {
        "about": dict(about),
        "pair": dict(pair),
        "setting": asdict(setting),
        "bandwidth_bytes_per_second": bandwidth,
        "limit_ms": 1e3 * pair["bytes"] / bandwidth,
        **asdict(run),
    }


def ratios(made: Mapping[str, Any], ours: str) -> list[Result]:
    """The goals' ratios of a record."""
    return list(
        results(
            made["engines"],
            made["pair"]["name"],
            made["setting"]["dtype"],
            bandwidth=made["bandwidth_bytes_per_second"],
            sizes=Sizes(made["pair"]["bytes"], made["pair"]["weights"]),
            ours=ours,
        )
    )


def text(made: Mapping[str, Any]) -> str:
    """The Markdown of a record."""
    setting, pair, about = made["setting"], made["pair"], made["about"]
    ours = [name for name in made["engines"] if re.split("[:@]", name)[0] in about["ours"]]
    judged = [name for name in ours if name.partition(":")[0] == OURS] or ours[:1]
    judged += [name for name in ours if name.startswith(f"{OURS}@")]
    slowest = min(max(reading.values()) for reading in made["bandwidth"])
    parts = [
        f"### {pair['name']}, {setting['dtype']}, K = {setting['k']}, temperature "
        f"{setting['temperature']:g}",
        f"{about['cpu']}, {setting['cores']} cores; {about['prompts']} prompts of "
        f"{about['prompt_tokens']} tokens, {about['tokens']} tokens each, prefill apart. "
        f"Median (least to most) of {about['prompts']} alternating repeats. Memory reads at "
        f"{made['bandwidth_bytes_per_second'] / GB:.1f} GB/s at best ({slowest / GB:.1f} at the "
        f"worst moment), so one token cannot take less than {made['limit_ms']:.1f} ms.",
        f"Made by `{about['command']}`.",
        engines_table(
            made["engines"],
            made["limit_ms"],
            pair["bytes"],
            greedy=setting["temperature"] == 0,
            failures=made["failures"],
        ),
        *(
            f"Ratios of `{name}`, smaller is better:\n\n{goals_table(ratios(made, name))}"
            for name in judged
        ),
        *overheads(made["engines"]),
        *(f"Not measured, {name}: {why}" for name, why in made["failures"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def write(made: Mapping[str, Any], folder: Path, name: str) -> Path:
    """`NAME.json` and `NAME.md`; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
    path = folder / f"{name}.md"
    path.write_text(text(made))
    return path

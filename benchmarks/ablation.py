"""What would teach SmolLM2's head further: its width, its depth, or more text.

    python benchmarks/ablation.py --work work/ablation     # forty minutes of two cores

Heads of EAGLE-3 begin at random weights and learn for some steps of 1,024 tokens, from the texts of
`benchmarks/smollm2.py`, none of which is seen twice: more steps are more text. Each run changes one
thing of the second one, and all are measured on the same held-out texts. Intervals are over texts.
Runs this short rank what is changed; they do not say where each would end.
"""

import argparse
import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "results" / "ablation"
TEXTS = Path(__file__).with_name("smollm2_texts.jsonl.gz")
STEPS, TOKENS = 150, 1024
RUNS: dict[str, dict[str, int]] = {  # name -> what it changes
    "half of the text": {"steps": STEPS // 2},
    "all alike": {},
    "twice the text": {"steps": 2 * STEPS},
    "twice the inner width": {"inner": 3072},
    "one pass deep": {"depth": 1},
}
ALIKE = {"steps": STEPS, "inner": 1536, "depth": 4}
COMMAND = (
    "train head --kind eagle3 --target smollm2 --draft-vocab 8192 --steps {steps} "
    "--inner {inner} --depth {depth} --rate 2e-3 --temperature 0.8 --seed 16 --held-out 48 "
    f"--whole --batch-tokens {TOKENS} --micro-tokens 512 --evaluations 1 --worth 0 --patience 0 "
    "--cost-seconds 0 --texts {texts} --out {out}"
)


def trained(name: str, work: Path) -> dict[str, Any]:
    """Train the head of a run, or go on with it, and return what it has reached."""
    settings, folder = {**ALIKE, **RUNS[name]}, work / name.replace(" ", "-")
    command = shlex.split(COMMAND.format(texts=work / "texts.jsonl", out=folder, **settings))
    resume = ["--resume"] if (folder / "train.json").exists() else []
    subprocess.run([sys.executable, "-m", "spsbench", *command, *resume], check=True)
    reached = json.loads((folder / "result" / "training.json").read_text())
    figures = {key: reached[key] for key in ("alpha", "reach", "texts", "places")}
    return {**settings, "tokens": settings["steps"] * TOKENS, **figures}


def table(values: dict[str, dict[str, Any]]) -> str:
    """Return alpha by depth and tau as Markdown."""
    lines = [
        "# SmolLM2's head: more text, width, depth",
        "",
        "`python benchmarks/ablation.py`",
        "",
        "| run | tokens | inner width | passes learned | alpha 1 | 2 | 3 | 4 | tau(4) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in values.items():
        alphas = [
            f"{mean:.3f} ({low:.3f} to {high:.3f})" if low is not None else f"{mean:.3f}"
            for mean, low, high in row["alpha"][:4]
        ]
        tau = 1 + sum(mean for mean, _, _ in row["reach"][:4])
        shape = f"{row['tokens']:,} | {row['inner']} | {row['depth']}"
        lines.append(f"| {name} | {shape} | {' | '.join(alphas)} | {tau:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train each head and write what all have reached."""
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("--work", type=Path, default=Path("work/ablation"))
    flags = options.parse_args()
    flags.work.mkdir(parents=True, exist_ok=True)
    (flags.work / "texts.jsonl").write_bytes(gzip.decompress(TEXTS.read_bytes()))
    values: dict[str, dict[str, Any]] = {}
    for name in RUNS:
        values[name] = trained(name, flags.work)
        OUT.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
        OUT.with_suffix(".md").write_text(table(values))


if __name__ == "__main__":
    main()
